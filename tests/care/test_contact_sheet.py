"""Contact sheets show the samples' labels."""

from pathlib import Path

import pytest
from _builders import jpeg

import shardio
from shardio.care.contact_sheet import contact_sheet


@pytest.mark.parametrize(("length", "legible"), [(22, True), (200, False)])
def test_class_names_are_shown_as_far_as_they_fit(length: int, legible: bool, tmp_path: Path) -> None:
    """Names that differ only at their 22nd letter are told apart; much longer ones are cut."""
    sheets = []
    for last in "xy":
        out = tmp_path / last
        with shardio.create(out, metadata={"classes": ["a" * (length - 1) + last]}) as writer:
            writer.append({"image": jpeg(), "label": 0})
        contact_sheet(shardio.open(out), tmp_path / "sheet.png", samples=1)
        sheets.append((tmp_path / "sheet.png").read_bytes())
    assert (sheets[0] != sheets[1]) == legible
