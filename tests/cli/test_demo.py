"""`shardio demo` goes from raw images to a trained model, and takes the place of an earlier demo."""

import json
from pathlib import Path

import numpy as np
import pytest
from _builders import write_idx
from typer.testing import CliRunner

from shardio.cli import app
from shardio.cli._demo import _remove_run
from shardio.errors import ConfigError
from shardio.train import TrainConfig, run


def raw(folder: Path, samples: int) -> None:
    """IDX files of grey images whose label is their brightness."""
    folder.mkdir(parents=True)
    labels = np.arange(samples, dtype=np.uint8) % 10
    images = np.random.default_rng(0).integers(0, 20, (samples, 28, 28)) + 25 * labels[:, None, None]
    write_idx(folder / "images", images.astype(np.uint8))
    write_idx(folder / "labels", labels)


@pytest.mark.long
def test_every_step_is_done(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    """The demo converts, verifies, compares, measures and trains, and ends with a table of all that."""
    for name, samples in (("train", 500), ("test", 100)):
        raw(tmp_path / "src" / name, samples)
    out = tmp_path / "out"
    options = ["--output", str(out), "--epochs", "1", "--ranks", "1"]
    done = CliRunner().invoke(app, ["demo", str(tmp_path / "src"), *options])
    assert done.exit_code == 0, (done.output, done.exception, capfd.readouterr())
    result = json.loads((out / "run" / "result.json").read_text())
    assert f"{result['score']:.1%}" in done.output
    assert "identical order and pixels" in done.output
    assert (out / "sheet.png").read_bytes().startswith(b"\x89PNG")
    run(TrainConfig(**trained(out), resume="auto", epochs=3, keep_checkpoints=4, metrics_every_steps=1, profile=True))
    _remove_run(out / "run")  # as the next demo does
    assert not (out / "run").exists()


def trained(out: Path) -> dict[str, str]:
    """The data and the folder of the demo's run."""
    first = next(path for path in out.iterdir() if (path / "test").is_dir())
    return {"train": str(first / "train"), "val": str(first / "test"), "output": str(out / "run"), "device": "cpu"}


def test_what_is_no_demo_is_not_removed(tmp_path: Path) -> None:
    """A folder with anything that the trainer did not write stays as it is."""
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "Thesis.tex").touch()
    with pytest.raises(ConfigError, match=r"holds Thesis\.tex, which the trainer did not write"):
        _remove_run(tmp_path / "run")
    assert (tmp_path / "run" / "Thesis.tex").exists()
