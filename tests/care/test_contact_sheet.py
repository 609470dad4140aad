"""Contact sheets show the samples' labels."""

from pathlib import Path

import cv2
import numpy as np
import pytest
from _builders import jpeg
from _masks import grey_png

import shardio
from shardio import Field
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


@pytest.mark.parametrize("augment", [False, True])
def test_masks_are_shown_in_colours(augment: bool, tmp_path: Path) -> None:
    """A dataset of masks alone is drawn in a colour per number; beside images, the images are drawn."""
    numbers = np.zeros((40, 40), np.uint8)
    numbers[10:30, 10:30] = 1
    mask, fields = grey_png(numbers), {"mask": Field("image", role="mask"), "image": "image"}
    sheets = []
    for name in ("masks", "both"):
        with shardio.create(tmp_path / name, fields=fields if name == "both" else {"mask": fields["mask"]}) as writer:
            writer.append({"mask": mask, "image": jpeg()} if name == "both" else {"mask": mask})
        contact_sheet(shardio.open(tmp_path / name), tmp_path / "sheet.png", samples=1, augment=augment)
        sheets.append(cv2.imread(str(tmp_path / "sheet.png")))
    red = (sheets[0] == (0, 0, 128)).all(axis=2)  # as BGR: the colour of number 1
    assert red.sum() > 1000
    assert not (sheets[1] == (0, 0, 128)).all(axis=2).any()
