"""Pictures show the samples that a Loader delivers, and what is known of them."""

import itertools
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import cv2
import numpy as np
import pytest
import torch
from _builders import jpeg
from _datasets import packed
from _masks import grey_png
from PIL import Image

import shardio
from shardio import ConfigError, Field, World
from shardio.care import show as show_module
from shardio.care.sheet import CAPTION_HEIGHT, GAP, TILE_SIZE, Block, sheet
from shardio.care.show import MOST_BATCHES, contact_sheet, ranks_at
from shardio.format.mask_colors import colored

CLASSES = ["cat", "dog", "owl"]
FIELDS = {
    "image": Field("image"),
    "mask": Field("image", role="mask"),
    "label": "int64",
    "key": "text",
    "grid": ("float32", (2, 6, 8)),
}


def sample(number: int) -> dict[str, Any]:
    """A photo, a mask with a rectangle at another place in each sample, a label, a text and an array."""
    mask = np.zeros((60, 80), np.uint8)
    mask[10:30, number : number + 30] = 1 + number % 5
    image = jpeg(60, 80, seed=number)
    grid = np.arange(96, dtype=np.float32).reshape(2, 6, 8) + number
    return {"image": image, "mask": grey_png(mask), "label": number % 3, "key": f"k{number}", "grid": grid}


def photos(first: int, last: int) -> shardio.Dataset:
    """These samples, with names of classes."""
    return shardio.from_samples(map(sample, range(first, last)), FIELDS, metadata={"classes": CLASSES})


@pytest.fixture
def blocks(monkeypatch: pytest.MonkeyPatch) -> list[Block]:
    """What the pictures that a test has drawn are made of."""
    drawn: list[Block] = []

    def recorded(given: Sequence[Block], columns: int) -> Any:
        drawn.extend(given)
        return sheet(given, columns)

    monkeypatch.setattr(show_module, "sheet", recorded)
    return drawn


def test_the_picture_is_what_each_rank_gets(tmp_path: Path) -> None:
    """Images, their normalization undone, and masks in colours are those of the batches, rank under rank."""
    crop = [shardio.RandomResizedCrop(TILE_SIZE), shardio.RandomHorizontalFlip()]
    transforms = {"image": [*crop, shardio.Normalize((0.4, 0.5, 0.6), (0.2, 0.3, 0.1))], "mask": crop}
    ranks = [
        shardio.Loader(photos(0, 16), 3, transforms=transforms, world=World(rank, 2), fields=["image", "mask"])
        for rank in range(2)
    ]
    assert shardio.show(ranks, tmp_path / "ranks.png") == 6
    picture = np.asarray(Image.open(tmp_path / "ranks.png"))
    tile = TILE_SIZE + GAP
    height = CAPTION_HEIGHT + GAP + TILE_SIZE + 2 * CAPTION_HEIGHT + GAP  # heading, pictures, names, caption
    assert picture.shape == (2 * height, 6 * tile + GAP, 3)
    for rank, loader in enumerate(ranks):
        batch = next(iter(loader))
        for row in range(3):
            y, x = rank * height + CAPTION_HEIGHT + GAP, GAP + 2 * row * tile
            image = batch["image"][row].permute(1, 2, 0) * torch.tensor([0.2, 0.3, 0.1]) + torch.tensor([0.4, 0.5, 0.6])
            difference = picture[y : y + TILE_SIZE, x : x + TILE_SIZE] - 255 * image.numpy()
            assert np.abs(difference).max() < 0.6
            x += tile
            assert (picture[y : y + TILE_SIZE, x : x + TILE_SIZE] == colored(batch["mask"][row].numpy())).all()


def test_cards_tell_what_a_sample_is(tmp_path: Path, blocks: list[Block]) -> None:
    """Each sample has its index, class, source and texts, and a slice of its array; repeated ones are marked."""
    mixture = shardio.mix({"studio": photos(0, 5), "street": photos(5, 9)})
    shardio.show(
        [shardio.Loader(mixture, 2, world=World(rank, 5), tail="pad") for rank in range(5)], tmp_path / "s.PNG"
    )
    assert [block.heading for block in blocks] == [
        f"epoch 0, step 0 of 1, rank {rank} of 5: 2 samples" for rank in range(5)
    ]
    cards = [card for block in blocks for card in block.cards]
    numbers = [int(card.lines[0].split()[0][1:]) for card in cards]
    assert sorted(numbers[:9]) == [*range(9)]
    for number, card in zip(numbers[:9], cards[:9], strict=True):
        assert card.lines == [
            f"#{number} {CLASSES[number % 3]}",
            f"source {'studio' if number < 5 else 'street'}",
            f"key k{number}",
        ]
        assert [name for name, _ in card.pictures] == ["image", "mask", "grid[1]"]
        assert (card.pictures[2][1].ravel() == np.rint(255 * np.arange(48) / 47)).all()
    assert cards[9].lines[0] == f"#{numbers[0]} {CLASSES[numbers[0] % 3]} (not valid)"
    assert [card.marked for card in cards] == [False] * 9 + [True]
    picture = np.asarray(Image.open(tmp_path / "s.PNG"))
    framed = (picture == (220, 30, 30)).all(axis=2)
    assert framed.any()
    assert not framed[: framed.shape[0] * 4 // 5].any()


def test_the_loader_stays_where_it_is(tmp_path: Path) -> None:
    """A look in the midst of a loop shows the batches that come next, and the loop goes on with them."""
    loader = shardio.Loader(photos(0, 30), 4, world=World())
    batches = iter(loader)
    next(batches)
    before = loader.state_dict()
    assert shardio.show(loader, tmp_path / "s.png", steps=2) == 8
    assert loader.state_dict() == before
    rest = [*batches]
    assert len(rest) == 6
    assert loader.epoch == 1
    shardio.show(loader, tmp_path / "next.png")
    assert loader.state_dict()["position"] == 0


def test_the_steps_of_a_loader_that_resumes(tmp_path: Path, blocks: list[Block]) -> None:
    """Steps count on from where a state stands; the last of them end the picture."""
    loader = shardio.Loader(photos(0, 30), 4, world=World())
    loader.load_state_dict(loader.state_dict() | {"epoch": 2, "position": 20})
    assert shardio.show(loader, tmp_path / "s.png", steps=9, samples=30) == 6
    assert [block.heading for block in blocks] == [
        f"epoch 2, step {step} of 7, rank 0 of 1: 3 of 4 samples" for step in (5, 6)
    ]
    ahead = [batch["index"][:3].tolist() for batch in loader]
    assert [[int(card.lines[0].split()[0][1:]) for card in block.cards] for block in blocks] == ahead


def test_a_batch_of_your_own(tmp_path: Path, blocks: list[Block]) -> None:
    """A batch is drawn by its shapes: floats in [0, 1] or stretched, numbers as masks, vectors and shares as text."""
    batch = {
        "x": torch.linspace(0, 1, 2 * 3 * 4 * 5).reshape(2, 3, 4, 5),
        "y": torch.linspace(-3, 7, 2 * 1 * 4 * 5).reshape(2, 1, 4, 5),
        "seen": np.array([[[1, 2], [3, 4]]] * 2),
        "label": torch.tensor([[0.75, 0.0, 0.25], [0.0, 1.0, 0.0]]),
        "target": torch.tensor([[1.5, float("nan")]] * 2),
        "tokens": torch.zeros(2, 512, dtype=torch.int64),
        "blob": [b"1", b"2"],
    }
    assert shardio.show(batch, tmp_path / "s.png") == 2
    (block,) = blocks
    assert block.heading == "2 samples; not drawn: tokens, blob"
    first, second = block.cards
    assert first.lines == ["0 0.75, 2 0.25", "target [1.5, nan]"]
    assert second.lines[0] == "1 1.00"
    pictures = dict(first.pictures)
    assert (pictures["x"] == np.rint(255 * batch["x"][0].permute(1, 2, 0).numpy())).all()
    assert (pictures["y"].min(), pictures["y"].max()) == (0, 255)
    assert pictures["seen"].tolist() == [[1, 2], [3, 4]]


def test_samples_without_a_value_leave_its_place_empty(tmp_path: Path, blocks: list[Block]) -> None:
    """Of an optional field only the samples that have it show something, whether it is stacked or not."""
    fields = {
        "image": Field("image", optional=True),
        "grid": Field("array", dtype="int16", shape=(3, 4), optional=True),
    }
    grid = np.arange(12, dtype=np.int16).reshape(3, 4)
    dataset = shardio.from_samples([{"image": jpeg(), "grid": grid}, {}], fields)
    shardio.show(shardio.Loader(dataset, 2, shuffle=None, world=World()), tmp_path / "s.png")
    assert [[picture is None for _, picture in card.pictures] for card in blocks[0].cards] == [[False] * 2, [True] * 2]


def test_a_picture_is_bounded_and_says_what_is_left_out(tmp_path: Path, blocks: list[Block]) -> None:
    """Of many batches the first are shown, with as many samples of each as the picture has room for."""
    loaders = ranks_at(photos(0, 90), world=30, batch_size=3)
    assert len(loaders) == MOST_BATCHES
    assert shardio.show(loaders, tmp_path / "s.png", steps=2, samples=40) == 2 * MOST_BATCHES
    assert blocks[-1].heading == f"batches not drawn: {MOST_BATCHES}"
    assert blocks[15].heading == "epoch 0, step 0 of 1, rank 15 of 30: 2 of 3 samples"


@pytest.mark.parametrize("weights", [None, {"a": 1, "b": 3}])
def test_ranks_stand_at_the_step_that_is_asked_for(weights: dict[str, float] | None) -> None:
    """The Loaders deliver what those of a job deliver in that step, of a weighted mixture too."""
    mixture = shardio.mix({"a": photos(0, 12), "b": photos(12, 30)}, weights)
    order: dict[str, Any] = {"seed": 5, "shuffle": "block", "block": 2, "window": 2}
    for rank, loader in enumerate(ranks_at(mixture, world=2, batch_size=3, epoch=1, step=3, **order)):
        job = shardio.Loader(mixture, 3, world=World(rank, 2), **order)
        job.set_epoch(1)
        (expected,) = itertools.islice(job, 3, 4)
        assert next(iter(loader))["index"].tolist() == expected["index"].tolist()
        assert loader.epoch == 1


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: shardio.show([], "s.png"), "there is no batch to show"),
        (lambda: shardio.show({"x": torch.zeros(1)}, "s.jpg"), "its name must end in .png, got 's.jpg'"),
        (lambda: shardio.show({"x": torch.zeros(1)}, "s.png", steps=0), "steps must be at least 1, got 0"),
        (lambda: shardio.show(["x"], "s.png"), "a batch, or a list of these, got str"),
        (
            lambda: shardio.show(3, "s.png"),
            "show takes a Loader, such as shardio.Loader.data, 32., a batch, or a list of these, got int",
        ),
        (lambda: ranks_at(photos(0, 9), world=0), "world must be at least 1, got 0"),
        (
            lambda: ranks_at(photos(0, 9), batch_size=3, step=3),
            r"step must be in \[0, 3\), the steps of an epoch, got 3",
        ),
    ],
)
def test_what_cannot_be_shown_is_told(call: Any, message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Arguments that show nothing are refused before anything is written."""
    monkeypatch.chdir(tmp_path)
    with pytest.raises(ConfigError, match=message):
        call()
    assert not [*tmp_path.iterdir()]


@pytest.mark.parametrize(("length", "legible"), [(22, True), (200, False)])
def test_class_names_are_shown_as_far_as_they_fit(length: int, legible: bool, tmp_path: Path) -> None:
    """Names that differ only at their 22nd letter are told apart; much longer ones are cut."""
    sheets = []
    for last in "xy":
        named = {"classes": ["a" * (length - 1) + last]}
        contact_sheet(packed(None, [{"image": jpeg(), "label": 0}], metadata=named), tmp_path / "sheet.png", samples=1)
        sheets.append((tmp_path / "sheet.png").read_bytes())
    assert (sheets[0] != sheets[1]) == legible


@pytest.mark.parametrize("augment", [False, True])
def test_masks_are_shown_in_colours(augment: bool, tmp_path: Path) -> None:
    """A dataset of masks alone is drawn in a colour per number; beside images, the images are drawn."""
    numbers = np.zeros((40, 40), np.uint8)
    numbers[10:30, 10:30] = 1
    alone, beside = {"mask": Field("image", role="mask")}, {"mask": Field("image", role="mask"), "image": "image"}
    sheets = []
    for fields in (alone, beside):
        made = {"mask": grey_png(numbers), "image": jpeg()}
        data = packed(None, [{name: made[name] for name in fields}], fields)
        moves = {"mask": [shardio.RandomResizedCrop(64)]} if augment else None
        contact_sheet(data, tmp_path / "sheet.png", samples=1, transforms=moves)
        sheets.append(cv2.imread(str(tmp_path / "sheet.png")))
    red = (sheets[0] == (0, 0, 128)).all(axis=2)  # as BGR: the colour of number 1
    assert red.sum() > 1000
    assert not (sheets[1] == (0, 0, 128)).all(axis=2).any()


def test_views_are_drawn_as_datasets_are(tmp_path: Path, blocks: list[Block]) -> None:
    """A contact sheet of a view shows its samples, and the source of each if it has sources."""
    joined = shardio.concat({"a": photos(0, 6), "b": photos(6, 12)})
    assert contact_sheet(joined.where("label == 2")[1:], tmp_path / "s.png") == 3
    (block,) = blocks
    assert sorted((*card.lines, card.pictures[0][0]) for card in block.cards) == [
        ("#0 owl", "source a", "image"),
        ("#1 owl", "source b", "image"),
        ("#2 owl", "source b", "image"),
    ]
    (loader,) = ranks_at(joined[3:9], batch_size=6, shuffle=None)
    shardio.show(loader, tmp_path / "s.png")
    assert [card.lines[2] for card in blocks[1].cards] == [f"key k{number}" for number in range(3, 9)]
