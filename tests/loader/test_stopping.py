"""A loop that is left ends with the values that its threads are making, in the midst of a call of compiled code too."""

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from _builders import jpeg, png
from _datasets import load, packed
from _time_limit import wait_until

import shardio
from shardio import native
from shardio.engines import whole_images
from shardio.engines.fused_images import FusedImages
from shardio.errors import PipelineClosed
from shardio.system.stopping import StopMark

IMAGES = 64  # of one task, which takes a second or more


def leave_in_a_task(image: Callable[..., bytes], begun: list[Any]) -> None:
    """Leave a loop while its only task is under way."""
    data = shardio.from_samples([{"image": image(1200, 1600)}] * IMAGES, {"image": "image"})
    loop = iter(load(data, IMAGES, threads=1, transforms=[shardio.Resize(8)]))
    wait_until(lambda: begun)
    time.sleep(0.05)
    loop.close()  # type: ignore[attr-defined]


@pytest.mark.skipif(native.library() is None, reason="not compiled here")
def test_a_call_of_compiled_code_ends(monkeypatch: pytest.MonkeyPatch) -> None:
    """The call that makes the images of a task raises PipelineClosed before it has made all."""
    begun, ended = list[None](), list[BaseException | None]()
    real = FusedImages.make

    def make(*arguments: Any, **options: Any) -> Any:
        begun.append(None)
        try:
            made = real(*arguments, **options)
        except BaseException as error:
            ended.append(error)
            raise
        ended.append(None)
        return made

    monkeypatch.setattr(FusedImages, "make", make)
    leave_in_a_task(jpeg, begun)
    assert [type(error) for error in ended] == [PipelineClosed]


def test_images_that_python_decodes_end(monkeypatch: pytest.MonkeyPatch) -> None:
    """No further image of a task is decoded."""
    begun: list[None] = []
    real = whole_images.images.check_pixels  # the first thing that a decoder does

    def check_pixels(*arguments: Any) -> None:
        begun.append(None)
        real(*arguments)

    monkeypatch.setattr(whole_images.images, "check_pixels", check_pixels)
    leave_in_a_task(png, begun)
    assert 0 < len(begun) < IMAGES


@pytest.mark.skipif(native.library() is None, reason="not compiled here")
def test_a_read_of_many_rows_ends(tmp_path: Path) -> None:
    """A call that reads rows reads no further one once the mark is set."""
    data = packed(tmp_path / "d", [{"x": bytes([n]) * 5000} for n in range(20)])
    mark = StopMark()
    with mark.followed():
        assert [value[0] for value in data.read(range(20))["x"]] == [*range(20)]
        mark.set()
        with pytest.raises(PipelineClosed):
            data.read(range(20))
    assert [value[0] for value in data.read(range(20))["x"]] == [*range(20)]
