"""However a loop over clips ends, in threads or processes, the process ends with its own status and others go on."""

import multiprocessing
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _workers import workers_of

import shardio
from shardio.errors import WorkerDied

av = pytest.importorskip("av")

SCRIPT = """
import sys, threading
import shardio

def main(folder, how, isolate):
    clip = {"video": [shardio.RandomClip(60), shardio.CenterCrop(32)]}
    loader = shardio.Loader(folder, 4, transforms=clip, threads=2, isolate=isolate, world=shardio.World())
    batches = iter(loader)  # held as the script ends
    next(batches)
    if how == "break":
        for batch in loader:
            break
    if how == "raise":
        raise RuntimeError("a bug in the training loop")
    if how == "interrupt":
        print(flush=True)
        for batch in loader:
            pass
        threading.Event().wait()

if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2], sys.argv[3] == "True")
"""
CODES = {"end": 0, "break": 0, "raise": 1, "interrupt": -signal.SIGINT}


@pytest.fixture(scope="module")
def videos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A dataset of several videos of 240 x 320 pixels, which take some time to decode."""
    folder = tmp_path_factory.mktemp("videos")
    with av.open(str(folder / "video.mp4"), "w") as file:
        stream = file.add_stream("libx264", rate=25, options={"preset": "ultrafast", "g": "50"})
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        noise = np.random.default_rng(0).integers(0, 256, (240, 420, 3), dtype=np.uint8)
        for number in range(100):
            frame = av.VideoFrame.from_ndarray(noise[:, number : number + 320].copy(), format="rgb24")
            file.mux(stream.encode(frame))
        file.mux(stream.encode(None))
    with shardio.create(folder / "dataset", container="tar", fields={"video": "video"}) as writer:
        for _ in range(24):
            writer.append({"video": (folder / "video.mp4").read_bytes()})
    return folder / "dataset"


def load(videos: Path, **options: Any) -> shardio.Loader:
    clip = {"video": [shardio.RandomClip(20, stride=2), shardio.CenterCrop(32)]}
    given: dict[str, Any] = {"transforms": clip, "threads": 2, "seed": 5, "world": shardio.World()}
    return shardio.Loader(videos, 2, **given | options)


def sums(loader: shardio.Loader) -> list[tuple[int, int]]:
    """The sample and the sum of the pixels of each clip of an epoch."""
    return [
        (index, int(clip.numpy().sum()))
        for batch in loader
        for index, clip in zip(batch["index"].tolist(), batch["video"], strict=True)
    ]


def send(loader: shardio.Loader, pipe: Any) -> None:
    pipe.send(sums(loader))


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("how", list(CODES))
def test_the_process_ends_with_its_own_status(videos: Path, tmp_path: Path, how: str, isolate: bool) -> None:
    """A loop that is held or left while clips decode, an error and Ctrl-C end the process as if nothing decoded."""
    (tmp_path / "main.py").write_text(SCRIPT)
    command = [sys.executable, tmp_path / "main.py", str(videos), how, str(isolate)]
    job = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)
    if how == "interrupt":
        job.stdout.readline()
        time.sleep(0.05)
        os.killpg(job.pid, signal.SIGINT)
    _, told = job.communicate(timeout=60)
    assert job.returncode == CODES[how], told
    assert told == "" or how in ("raise", "interrupt"), told


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("isolate", [False, True])
@pytest.mark.parametrize("method", ["fork", "spawn"])
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork.*:DeprecationWarning")
def test_clips_in_another_process(videos: Path, method: str, isolate: bool) -> None:
    """A process that began while clips decoded decodes the same clips, and the loop goes on in this one."""
    loader, wanted = load(videos, isolate=isolate), sums(load(videos))
    begun = iter(loader)
    next(begun)
    context = multiprocessing.get_context(method)
    ours, theirs = context.Pipe()
    child = context.Process(target=send, args=(load(videos, isolate=isolate), theirs))
    child.start()
    assert ours.poll(60)
    assert ours.recv() == wanted
    child.join(10)
    assert child.exitcode == 0
    assert len(list(begun)) == 11


@pytest.mark.slow
def test_isolated_clips_survive_a_crash_of_the_decoder(videos: Path) -> None:
    """With isolate=True a process that crashes while it decodes is an error of the loop; the next loop goes on."""
    loader = load(videos, isolate=True)
    epoch = iter(loader)
    next(epoch)
    victim = workers_of(loader)[0]
    assert victim.pid is not None
    os.kill(victim.pid, signal.SIGSEGV)
    with pytest.raises(WorkerDied, match=r"exit code -11$"):
        list(epoch)
    loader.set_epoch(0)
    assert sums(loader) == sums(load(videos))
