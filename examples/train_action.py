"""Train a small classifier of actions on two ranks, go on with one after it was killed, and measure its accuracy.

python examples/make_clips.py actions
shardio convert videofolder actions data/actions --split train=0.8,val=0.2
torchrun --standalone --nproc-per-node 2 examples/train_action.py data/actions
python examples/train_action.py data/actions

Kill the third command at any time, or stop it with --stop-after 30: the last one goes on from the checkpoint on one
rank, with the clips of the epoch that were not delivered before it. The network sees eight frames of each video, three
apart, from a random one on. The classes are directions of movement, so clips aren't flipped.
"""

import argparse
import os
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # if imported later, it keeps the group's threads alive after its end
from torch import Tensor, nn

import shardio

SIDE = 64  # pixels of the clips that the model takes
FRAMES, STRIDE = 8, 3
TRAIN = [
    shardio.RandomClip(FRAMES, stride=STRIDE),
    shardio.RandomResizedCrop(SIDE, scale=(0.6, 1.0)),
    shardio.ToFloat(),
]
EVALUATE = [shardio.CenterClip(FRAMES, stride=STRIDE), shardio.Resize((SIDE, SIDE)), shardio.ToFloat()]


class Classifier(nn.Module):
    """Convolutions over time and place."""

    def __init__(self, classes: int) -> None:
        super().__init__()
        widths, strides = (3, 16, 32, 64), ((1, 2, 2), (1, 2, 2), (2, 2, 2))
        self.features = nn.Sequential(
            *(
                nn.Sequential(nn.Conv3d(a, b, 3, stride, 1, bias=False), nn.GroupNorm(8, b), nn.ReLU())
                for a, b, stride in zip(widths, widths[1:], strides, strict=False)
            )
        )
        self.head = nn.Linear(widths[-1], classes)

    def forward(self, clips: Tensor) -> Tensor:
        """Return logits [B, classes] for clips [B, T, C, H, W]."""
        features = self.features(clips.transpose(1, 2) - 0.5)  # [B, C, T, H, W], as Conv3d takes it
        return self.head(features.mean(dim=(2, 3, 4)))


@torch.no_grad()
def evaluate(model: Classifier, path: Path, batch_size: int) -> str:
    """Return the accuracy over all ranks, on the clip in the middle of each video."""
    loader = shardio.Loader(path, batch_size, transforms={"video": EVALUATE}, shuffle=None, tail="pad")
    counts = torch.zeros(2)
    for batch in loader:
        valid = batch["valid"]  # False for the videos that a padded tail repeats
        right = model(batch["video"]).argmax(dim=1) == batch["label"]
        counts += torch.tensor([(right & valid).sum(), valid.sum()])
    if dist.is_initialized():
        dist.all_reduce(counts)
    return f"accuracy {counts[0] / counts[1]:.3f} on {int(counts[1])} videos"


def train(args: argparse.Namespace) -> None:
    """Train until `args.epochs` are done, from the checkpoint if there is one, and print the accuracy."""
    world = dist.get_world_size() if dist.is_initialized() else 1
    dataset = shardio.open(args.dataset / "train")
    loader = shardio.Loader(dataset, args.batch_size // world, transforms={"video": TRAIN}, seed=0)
    torch.manual_seed(0)
    model = Classifier(len(dataset.classes))
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, 5e-3, args.epochs * len(loader))
    parts = {"model": model, "optimizer": optimizer, "schedule": schedule, "loader": loader}
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, weights_only=True)
        for name, part in parts.items():
            part.load_state_dict(saved[name])
    replica = nn.parallel.DistributedDataParallel(model) if world > 1 else model

    def save() -> None:
        if loader.world.rank == 0:  # all ranks have the same state
            written = args.checkpoint.with_suffix(".new")
            torch.save({name: part.state_dict() for name, part in parts.items()}, written)
            written.replace(args.checkpoint)  # so that a run that is killed leaves a whole one

    while loader.epoch < args.epochs and schedule.last_epoch != args.stop_after:
        epoch, total, steps = loader.epoch, torch.zeros(()), 0
        for batch in loader:
            loss = nn.functional.cross_entropy(replica(batch["video"]), batch["label"])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            schedule.step()
            total, steps = total + loss.detach(), steps + 1
            if schedule.last_epoch % args.save_every == 0:
                save()
            if schedule.last_epoch == args.stop_after:
                break
        if world > 1:
            dist.all_reduce(total)
        if loader.world.rank == 0:
            print(f"epoch {epoch}: loss {total.item() / steps / world:.3f}", flush=True)
    save()
    if loader.epoch == args.epochs:
        told = evaluate(model, args.dataset / "val", args.batch_size // world)
        if loader.world.rank == 0:
            print(told, flush=True)


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset", type=Path)
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--batch-size", type=int, default=16, help="clips of all ranks together")
    parser.add_argument("--save-every", type=int, default=10, help="steps from one checkpoint to the next")
    parser.add_argument("--stop-after", type=int, help="steps, after which the checkpoint is left")
    parser.add_argument("--checkpoint", type=Path, default=Path("action.pt"))
    args = parser.parse_args()

    if "RANK" in os.environ:
        dist.init_process_group("gloo")
    train(args)  # everything that holds the process group ends in `train`
    if dist.is_initialized():
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
