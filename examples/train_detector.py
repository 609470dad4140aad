"""Train a small object detector on two ranks, go on with one, and measure its mAP, which is at least 0.7.

pip install pycocotools
torchrun --standalone --nproc-per-node 2 examples/train_detector.py data/shapes --stop-after 200
python examples/train_detector.py data/shapes

The first command makes the data, coloured shapes on noise with their boxes, and stops in the middle of an epoch. The
second one goes on from there: the global batches are the same on any number of ranks. The detector is anchor-free, as
FCOS is (Tian et al. 2019): each cell of a grid predicts the class of the box around it, and how far its edges are.
"""

import argparse
import contextlib
import io
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # if imported later, it keeps the group's threads alive after its end
from PIL import Image, ImageDraw
from pycocotools.coco import COCO
from pycocotools.cocoeval import COCOeval
from torch import Tensor, nn

import shardio

CLASSES = ("disc", "square", "triangle")
SIDE = 96  # pixels of the images that the model takes
STRIDE = 8  # pixels of a cell
FIELDS = {
    "image": "image",
    "boxes": shardio.Field("array", "float32", (None, 4), role="boxes", on="image"),  # xyxy in pixels
    "labels": shardio.Field("array", "int64", (None,), per="boxes"),
}
TRAIN = [
    shardio.RandomIoUCrop(min_scale=0.5),
    shardio.SanitizeBoundingBoxes(min_size=4, min_visibility=0.3),
    shardio.RandomHorizontalFlip(),
    shardio.Resize((SIDE, SIDE)),
    shardio.ToFloat(),
]
EVALUATE = [shardio.Resize((SIDE, SIDE)), shardio.ToFloat()]


def scene(random: np.random.Generator) -> dict[str, object]:
    """Return a photo of one to four shapes that don't overlap, their boxes and their classes."""
    width, height = random.integers(112, 160, 2).tolist()
    image = Image.fromarray(random.integers(0, 128, (height, width, 3), np.uint8))
    boxes, labels = np.empty((0, 4), np.float32), []
    for _ in range(random.integers(1, 5)):
        side = random.integers(20, 60)
        left, top = random.integers(0, (width - side, height - side))
        box = np.array([left, top, left + side, top + side], np.float32)
        if ((box[:2] < boxes[:, 2:]) & (boxes[:, :2] < box[2:])).all(axis=1).any():
            continue
        labels.append(int(random.integers(len(CLASSES))))
        boxes = np.vstack((boxes, box))
        draw(ImageDraw.Draw(image), CLASSES[labels[-1]], *box.tolist(), color=tuple(random.integers(128, 256, 3)))
    file = io.BytesIO()
    image.save(file, "JPEG", quality=90)
    return {"image": file.getvalue(), "boxes": boxes, "labels": np.array(labels)}


def draw(on: ImageDraw.ImageDraw, shape: str, left: float, top: float, right: float, bottom: float, color) -> None:
    """Fill a shape that touches all edges of its box; pixel (x, y) has its edges at x, y and x + 1, y + 1."""
    corners = (left, top, right - 1, bottom - 1)
    if shape == "disc":
        on.ellipse(corners, color)
    elif shape == "square":
        on.rectangle(corners, color)
    else:
        on.polygon([(left, bottom - 1), ((left + right - 1) / 2, top), (right - 1, bottom - 1)], color)


def write(folder: Path) -> None:
    """Write 1,200 scenes to train on, and 203 to evaluate on, which fill no last batch."""
    for name, count, seed in (("train", 1200, 0), ("val", 203, 1)):
        random = np.random.default_rng(seed)
        with shardio.create(folder / name, container="tar", fields=FIELDS) as writer:
            for _ in range(count):
                writer.append(scene(random))


class Detector(nn.Module):
    """A convolutional network with a grid of predictions."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        widths, strides = (3, 24, 48, width, width, width), (2, 2, 2, 1, 1)
        self.features = nn.Sequential(
            *(
                nn.Sequential(nn.Conv2d(a, b, 3, stride, 1, bias=False), nn.GroupNorm(8, b), nn.ReLU())
                for a, b, stride in zip(widths, widths[1:], strides, strict=False)
            )
        )
        self.classes, self.edges = nn.Conv2d(width, len(CLASSES), 1), nn.Conv2d(width, 4, 1)
        nn.init.constant_(self.classes.bias, -4.0)  # most cells are background
        centers = STRIDE * (torch.arange(SIDE // STRIDE) + 0.5)
        self.register_buffer("centers", torch.cartesian_prod(centers, centers).flip(1))  # (x, y) [cells, 2]

    def forward(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """Return the logits of the classes [B, cells, classes] and the boxes [B, cells, 4] in pixels."""
        features = self.features(images - 0.5)
        edges = STRIDE * self.edges(features).exp().flatten(2).mT
        boxes = torch.cat((self.centers - edges[..., :2], self.centers + edges[..., 2:]), dim=-1)
        return self.classes(features).flatten(2).mT, boxes


def iou(a: Tensor, b: Tensor) -> tuple[Tensor, Tensor]:
    """Return the overlap of boxes [..., 4], and the share of the box around both that neither of them covers."""
    sides = (torch.minimum(a[..., 2:], b[..., 2:]) - torch.maximum(a[..., :2], b[..., :2])).clamp(min=0)
    areas = [(box[..., 2:] - box[..., :2]).prod(-1) for box in (a, b)]
    shared = sides.prod(-1)
    union = areas[0] + areas[1] - shared
    around = (torch.maximum(a[..., 2:], b[..., 2:]) - torch.minimum(a[..., :2], b[..., :2])).prod(-1)
    return shared / union, 1 - union / around


def assign(centers: Tensor, target: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """Return the cells that predict a box of an image, and which box: the smallest whose center is near the cell's."""
    boxes = target["boxes"]
    middles, sides = (boxes[:, :2] + boxes[:, 2:]) / 2, boxes[:, 2:] - boxes[:, :2]
    away = (centers[:, None] - middles).abs()  # [cells, boxes, 2]
    near = (away < torch.clamp(sides / 2, max=1.5 * STRIDE)).all(dim=-1)
    areas = torch.where(near, sides.prod(dim=-1), torch.inf)
    cells = near.any(dim=1).nonzero()[:, 0]
    return cells, areas[cells].argmin(dim=1)


def loss_of(logits: Tensor, boxes: Tensor, targets: list[dict[str, Tensor]], centers: Tensor) -> Tensor:
    """Return the focal loss of the classes (Lin et al. 2017) and the GIoU loss of the boxes, per image."""
    wanted, total = torch.zeros_like(logits), logits.new_zeros(())
    for number, target in enumerate(targets):
        if len(target["boxes"]):
            cells, chosen = assign(centers, target)
            wanted[number, cells, target["labels"][chosen]] = 1
            overlap, uncovered = iou(boxes[number, cells], target["boxes"][chosen])
            total = total + (1 - overlap + uncovered).sum()
    wrong = (wanted - logits.sigmoid()).abs()
    plain = nn.functional.binary_cross_entropy_with_logits(logits, wanted, reduction="none")
    weight = torch.where(wanted > 0, 0.25, 0.75) * wrong**2
    return (total + 4 * (weight * plain).sum()) / len(targets)


def xywh(box: Tensor) -> list[float]:
    """Return a box in COCO's form."""
    return torch.cat((box[:2], box[2:] - box[:2])).tolist()


def detections(logits: Tensor, boxes: Tensor) -> list[dict[str, object]]:
    """Return the boxes of an image in COCO's form, without those that a better box of their class overlaps."""
    scores, best = logits.sigmoid().flatten().topk(60)
    cells, labels = best // len(CLASSES), best % len(CLASSES)
    repeated = (iou(boxes[cells][:, None], boxes[cells])[0] > 0.5) & (labels[:, None] == labels)
    kept: list[int] = []
    for number in range(len(best)):
        if not repeated[number, kept].any():
            kept.append(number)
    return [{"category_id": int(labels[n]), "score": float(scores[n]), "bbox": xywh(boxes[cells[n]])} for n in kept]


@torch.no_grad()
def evaluate(model: Detector, path: Path, batch_size: int) -> str:
    """Return COCO's mAP, that of IoUs from 0.5 to 0.95, over all ranks."""
    loader = shardio.Loader(
        path,
        batch_size,
        transforms=EVALUATE,
        fields=["image"],
        shuffle=None,
        tail="pad",  # equal steps on all ranks; the images that it repeats are False in `valid`
        geometry=True,
    )
    found: list[dict[str, object]] = []
    for batch in loader:
        logits, boxes = model(batch["image"])
        matrix = batch["image_geometry"].inverse().float()  # from delivered to stored pixels: a scale and a shift
        boxes = boxes * matrix[:, [0, 1], [0, 1]].repeat(1, 2)[:, None] + matrix[:, :2, 2].repeat(1, 2)[:, None]
        for row in batch["valid"].nonzero()[:, 0]:
            image = int(batch["index"][row])
            found += [{"image_id": image} | one for one in detections(logits[row], boxes[row])]
    if dist.is_initialized():
        parts: list[list[dict[str, object]]] = [[] for _ in range(dist.get_world_size())]
        dist.all_gather_object(parts, found)
        found = sorted((one for part in parts for one in part), key=lambda one: one["image_id"])
    return mean_average_precision(shardio.open(path), found)


def mean_average_precision(dataset: shardio.Dataset, found: list[dict[str, object]]) -> str:
    """Return COCO's mAP of the detections, and of how many images they are."""
    annotations: list[dict[str, object]] = []
    for image in range(len(dataset)):
        sample = dataset[image]
        for box, label in zip(torch.from_numpy(sample["boxes"]), sample["labels"].tolist(), strict=True):
            area = float((box[2:] - box[:2]).prod())
            one = {"image_id": image, "category_id": label, "bbox": xywh(box), "area": area, "iscrowd": 0}
            annotations.append(one | {"id": len(annotations) + 1})
    with contextlib.redirect_stdout(io.StringIO()):  # its tables
        truth = COCO()
        truth.dataset = {
            "images": [{"id": image} for image in range(len(dataset))],
            "categories": [{"id": number, "name": name} for number, name in enumerate(CLASSES)],
            "annotations": annotations,
        }
        truth.createIndex()
        evaluation = COCOeval(truth, truth.loadRes(found), "bbox")
        evaluation.evaluate()
        evaluation.accumulate()
        evaluation.summarize()
    return f"mAP {evaluation.stats[0]:.3f} on {len({one['image_id'] for one in found})} images"


def train(args: argparse.Namespace) -> None:
    """Train until `args.epochs` are done, from the checkpoint if there is one, and print the mAP."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    loader = shardio.Loader(
        args.dataset / "train",
        args.batch_size // world,
        transforms={"image": TRAIN, "boxes": [shardio.Ragged()]},
        seed=0,
    )
    torch.manual_seed(0)
    model = Detector()
    optimizer = torch.optim.AdamW(model.parameters(), lr=4e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 4e-3, args.epochs * len(loader))
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    replica = nn.parallel.DistributedDataParallel(model) if world > 1 else model
    while loader.epoch < args.epochs and schedule.last_epoch != args.stop_after:
        epoch, total, steps = loader.epoch, torch.zeros(()), 0
        for batch in loader:
            logits, boxes = replica(batch["image"])
            loss = loss_of(logits, boxes, shardio.to_torchvision(batch), model.centers)
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total, steps = total + loss.detach(), steps + 1
            if schedule.last_epoch == args.stop_after:
                break
        if world > 1:
            dist.all_reduce(total)
        if loader.world.rank == 0:
            print(f"epoch {epoch}: loss {total.item() / steps / world:.3f}", flush=True)
    if loader.world.rank == 0:  # all ranks have the same state
        torch.save({name: part.state_dict() for name, part in parts.items()}, args.checkpoint)
    if loader.epoch == args.epochs:
        told = evaluate(model, args.dataset / "val", args.batch_size // world)
        if loader.world.rank == 0:
            print(told, flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=6)
    parser.add_argument("--batch-size", type=int, default=16, help="images of all ranks together")
    parser.add_argument("--stop-after", type=int, help="steps, after which the checkpoint is left")
    parser.add_argument("--checkpoint", type=Path, default=Path("detector.pt"))
    args = parser.parse_args()

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    if not args.dataset.exists() and int(os.environ.get("RANK", 0)) == 0:
        write(args.dataset)
    if dist.is_initialized():
        dist.barrier()
    train(args)  # everything that holds the process group ends in `train`
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
