"""Learn the next step of the weather from windows and patches of months of NetCDF, on any number of ranks and nodes.

python examples/make_months.py months
shardio index 'months/*.nc' -o data/months --fields time --stack x=t2m,u10,v10 --decode-cf
python examples/train_months.py data/months --stop-after 6
python examples/train_months.py data/months

The last command goes on from the checkpoint. Under Slurm, srun starts a rank for each GPU, as the scripts in
examples/slurm/ do. Any number of ranks goes on where any other has stopped.
"""

import argparse
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.nn.functional  # if imported later, it keeps the group's threads alive after its end
from torch import nn

import shardio

STEPS, PATCH = 3, 64
MEAN, STD = (264.7, -1.9, 0.0), (15.0, 6.4, 2.5)  # of t2m, u10 and v10, as `shardio stats` reports them


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dataset")
    parser.add_argument("--cache", help="a folder on this node's own disk, filled by `shardio stage`")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=16, help="windows of all ranks together")
    parser.add_argument("--stop-after", type=int, help="steps, after which the checkpoint is left")
    parser.add_argument("--save-every", type=int, default=100, help="steps between checkpoints within an epoch")
    parser.add_argument("--checkpoint", type=Path, default=Path("months.pt"))
    args = parser.parse_args()
    world = shardio.World.detect()  # by the variables of Slurm, torchrun or mpirun
    device = torch.device("cpu")
    if torch.cuda.is_available():
        # Some sites show each rank all GPUs of its node, others only its own.
        device = torch.device("cuda", world.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
    if world.size > 1:  # MASTER_ADDR and MASTER_PORT say where rank 0 is
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo", rank=world.rank, world_size=world.size)
    train(args, world, device)  # everything that holds the process group ends in `train`
    if world.size > 1:
        dist.destroy_process_group()


def train(args: argparse.Namespace, world: shardio.World, device: torch.device) -> None:
    """Train until `args.epochs` are done, from the checkpoint if there is one."""
    months = shardio.open(args.dataset, cache=args.cache)
    windows = months.windows(STEPS, contiguous="time")  # across files, never across a gap
    patches = [shardio.RandomSpatialCrop((PATCH, PATCH)), shardio.Normalize(MEAN, STD)]
    loader = shardio.Loader(
        windows,
        args.batch_size // world.size,  # of this rank: all ranks together make the same batches
        fields=["x"],
        transforms={"x": patches},
        device=device,
        seed=0,
    )
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Conv2d(6, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.Conv2d(32, 3, 1)
    ).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    parts, step = {"model": model, "optimizer": optimizer, "loader": loader}, 0
    if args.checkpoint.exists():
        saved = torch.load(args.checkpoint, map_location=device, weights_only=True)
        step = saved.pop("step")
        for name, state in saved.items():
            parts[name].load_state_dict(state)
    replica = nn.parallel.DistributedDataParallel(model) if world.size > 1 else model

    def save() -> None:
        if world.rank == 0:  # all ranks have the same state
            unfinished = args.checkpoint.with_suffix(".tmp")
            torch.save({name: part.state_dict() for name, part in parts.items()} | {"step": step}, unfinished)
            unfinished.replace(args.checkpoint)  # so a job that is killed now leaves the last checkpoint whole

    while loader.epoch < args.epochs and step != args.stop_after:
        for batch in loader:
            x = batch["x"]  # float32 [B, 3 steps, 3 variables, 64, 64]
            loss = nn.functional.mse_loss(replica(x[:, :2].flatten(1, 2)), x[:, 2] - x[:, 1])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
            step += 1
            mean = loss.detach()
            if world.size > 1:
                dist.all_reduce(mean)
            if world.rank == 0:
                print(f"step {step}: loss {mean.item() / world.size:.4f}", flush=True)
            if step == args.stop_after:
                break
            if step % args.save_every == 0:
                save()
    save()


if __name__ == "__main__":
    main()
