"""JAX trains on the Loader's arrays, divided among devices along the batch, and goes on where it was stopped.

shardio convert idx examples/fashion-mnist/train data/fashion/train --to hdf5
python examples/train_jax.py data/fashion/train --devices 2

Several processes, each with devices of its own, give one batch together:

python examples/train_jax.py data/fashion/train --coordinator 127.0.0.1:29500 --process 0 2 &
python examples/train_jax.py data/fashion/train --coordinator 127.0.0.1:29500 --process 1 2
"""

import argparse
import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

import shardio

Weights = dict[str, jax.Array]


def first_weights() -> Weights:
    """Return the weights of a network of one hidden layer."""
    keys = jax.random.split(jax.random.key(0), 2)
    return {
        "in": 0.05 * jax.random.normal(keys[0], (784, 64)),
        "out": 0.1 * jax.random.normal(keys[1], (64, 10)),
    }


def loss_of(weights: Weights, image: jax.Array, label: jax.Array) -> jax.Array:
    """Return the mean loss of a batch."""
    hidden = jax.nn.relu(image.reshape(len(image), -1) @ weights["in"])
    scores = jax.nn.log_softmax(hidden @ weights["out"])
    return -jnp.take_along_axis(scores, label[:, None], axis=1).mean()


@jax.jit
def step(weights: Weights, image: jax.Array, label: jax.Array) -> tuple[Weights, jax.Array]:
    """Take a step of gradient descent; the mean over the batch is one over all devices."""
    loss, slopes = jax.value_and_grad(loss_of)(weights, image, label)
    return jax.tree.map(lambda weight, slope: weight - 0.1 * slope, weights, slopes), loss


def main() -> None:
    """Run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset")
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--batch-size", type=int, default=100, help="samples per step of all processes")
    parser.add_argument("--devices", type=int, default=1, help="devices of this process, if they are CPUs")
    parser.add_argument("--coordinator", help="address and port of process 0, if there are several")
    parser.add_argument("--process", type=int, nargs=2, default=(0, 1), metavar=("NUMBER", "COUNT"))
    parser.add_argument("--checkpoint", type=Path, default=Path("jax-checkpoint.npz"))
    parser.add_argument("--stop-after", type=int, metavar="STEPS")
    args = parser.parse_args()

    jax.config.update("jax_num_cpu_devices", args.devices)
    number, count = args.process
    if args.coordinator is not None:
        jax.distributed.initialize(args.coordinator, count, number)
    along_batch = NamedSharding(jax.make_mesh((jax.device_count(),), ("batch",)), PartitionSpec("batch"))
    everywhere = NamedSharding(along_batch.mesh, PartitionSpec())

    loader = shardio.Loader(
        args.dataset,
        args.batch_size // count,  # of this process, for all of its devices
        transforms=[shardio.Normalize(0.5, 0.25)],
        seed=0,
        world=shardio.World(number, count),
        to="numpy",
    )
    weights = jax.tree.map(np.asarray, first_weights())
    if args.checkpoint.exists():
        with np.load(args.checkpoint) as saved:
            loader.load_state_dict(json.loads(str(saved["loader"])))
            weights = {name: saved[name] for name in weights}
    weights = jax.device_put(weights, everywhere)

    taken = 0
    while loader.epoch < args.epochs:
        epoch, losses = loader.epoch, []
        for batch in loader:
            image, label = (
                jax.make_array_from_process_local_data(along_batch, batch[name]) for name in ("image", "label")
            )
            weights, loss = step(weights, image, label)
            losses.append(loss)
            taken += 1
            if taken == args.stop_after:
                save(args.checkpoint, weights, loader)
                return
        if number == 0:
            print(f"epoch {epoch}: loss {np.mean(losses):.3f}", flush=True)
        save(args.checkpoint, weights, loader)


def save(path: Path, weights: Weights, loader: shardio.Loader) -> None:
    """Write the weights and the Loader's state, which are the same in every process."""
    if jax.process_index() == 0:
        arrays = {name: np.asarray(weight) for name, weight in weights.items()}
        new = path.with_suffix(".new.npz")
        np.savez(new, loader=json.dumps(loader.state_dict()), **arrays)
        new.replace(path)


if __name__ == "__main__":
    main()
