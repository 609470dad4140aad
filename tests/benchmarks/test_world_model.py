"""The comparison of loaders of a world model's rows delivers the file's rows, and finds others."""

from pathlib import Path

import pytest

from benchmarks.row_loaders import BATCH, LOADERS, checksum
from benchmarks.world_model import measure, stored, write

BATCHES = 3


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("rows") / "data"
    write(BATCHES, made)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", ["shardio", "h5py DataLoader"])
def test_an_epoch_has_the_rows_of_the_file(name: str, folder: Path) -> None:
    """Loaders that need no other library deliver each row once, in an order of their own."""
    assert checksum(LOADERS[name](folder)) == stored(folder)


def test_other_rows_are_found(folder: Path) -> None:
    """A changed pixel, a value of another row, a row that comes twice and a short batch are told apart."""
    first, second, third = LOADERS["shardio"](folder)
    wanted = stored(folder)
    assert wanted.startswith(f"{BATCHES * BATCH} ")
    assert checksum([third, second, first]) == wanted
    assert checksum([first, second, second]) != wanted
    pixels, values = (part.clone() for part in third)
    assert checksum([first, second, (pixels, values.flip(0))]) != wanted
    pixels[5, 40, 40, 1] ^= 1
    assert checksum([first, second, (pixels, values)]) != wanted
    with pytest.raises(ValueError, match=r"pixels of shape \(63, 96, 96, 3\)"):
        checksum([(pixels[1:], values[1:])])


@pytest.mark.long
def test_shardio_is_measured(folder: Path, tmp_path: Path) -> None:
    """From end to end: a run is a process, whose rows are compared before it is timed."""
    found = measure(folder, Path(), tmp_path, ["shardio"], 1, 0.05)
    for kind in ("rows_per_second", "per_cpu_second"):
        assert found["shardio"][kind]["median"] > 0
        assert found["shardio"][kind]["shardio is"] == 1
