"""Steps per second of two ranks on a slow network, for each way to exchange gradients.

    sudo python benchmarks/slow_network.py [--delay 20] [--megabits 100] [--steps 8] [--rounds 3] [--json FILE]

Each rank has a network namespace and a core of its own. What they send goes through this process, by a TUN device in
each namespace: it delays each packet by half of the round trip, and lets no more through than the rate. (`tc` does that
where the kernel has netem.) Choose `--batch` so that a step computes for about as long as all gradients take. It needs
root, and Linux's `ip` and `taskset`.
"""

import fcntl
import json
import os
import struct
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from statistics import median
from typing import Any

import torch

from benchmarks._results import finish, options
from shardio.train import TrainConfig
from shardio.train.distributed import join
from shardio.train.image_classification import ImageClassification
from shardio.train.learner import Learner
from shardio.train.model import ResNet

RANKS, SIDE, WIDTH = 2, 64, 42
OUTER: dict[str, Any] = {"local_sgd_period": 8, "outer_optimizer": "nesterov"}
WAYS: dict[str, dict[str, Any]] = {
    "synchronous": {},
    "bf16": {"hook": "bf16"},
    "PowerSGD, rank 2": {"hook": "powersgd", "powersgd_rank": 2, "powersgd_start": 2},
    "lag": {"gradient_lag": 1},
    "lag, bf16": {"gradient_lag": 1, "hook": "bf16"},
    "local SGD, period 8": {"local_sgd_period": 8},
    "outer steps, period 8": OUTER,
    "overlapped, period 8, overlap 4": {"local_sgd_period": 8, "local_sgd_overlap": 4},
    "overlapped outer steps": OUTER | {"local_sgd_overlap": 4},
    "no exchange": {"local_sgd_period": 10**6},
}
MTU, QUEUED = 9000, 0.5  # bytes; seconds of packets that wait for their turn, those behind are dropped
_CREATE, _TUN = 0x400454CA, 0x1001


def measure(steps: int, rounds: int, size: int) -> None:
    """Train in each way on this rank, in turns; rank 0 prints the seconds per step."""
    with join("cpu", 60) as job:
        task, model = ImageClassification(1000, 3), None
        batch = {
            "image": torch.randn(size, 3, SIDE, SIDE),
            "label": torch.zeros(size, dtype=torch.int64),
            "valid": torch.ones(size, dtype=torch.bool),
        }
        for number in range(rounds):
            for name, way in WAYS.items():
                torch.manual_seed(0)
                model = ResNet(1000, 3, 224, width=WIDTH)
                learner = Learner(
                    TrainConfig(train="none", output="none", batch_size=size, **way), job, model, 10**6, task
                )
                first = way.get("local_sgd_period", 3) % 10**6 or 3  # DDP has chosen its buckets, or a period is over
                for step in range(first + steps):
                    if step == first:
                        print("begin", flush=True)
                        begun, busy = time.perf_counter(), time.process_time()
                    learner.step(batch, lr=1e-4, count=learner.global_batch, last=True)
                seconds = (time.perf_counter() - begun) / steps
                busy = (time.process_time() - busy) / steps
                print("end", flush=True)
                learner.exchange.agree()
                learner.finish(1e-4)
                seconds, busy = job.largest(seconds, busy)
                if job.leads:
                    weights = sum(weight.numel() for weight in model.parameters())
                    row = {"way": name, "round": number, "seconds": seconds, "busy": busy, "weights": weights}
                    print(json.dumps(row), flush=True)
                del learner


def tun(name: str) -> int:
    """Create a TUN device; what is written to the descriptor arrives at it, and what it sends is read from there."""
    device = os.open("/dev/net/tun", os.O_RDWR)
    fcntl.ioctl(device, _CREATE, struct.pack("16sH", name.encode(), _TUN))
    return device


def forward(source: int, target: int, delay: float, rate: float) -> None:
    """Pass packets on while the devices exist: each `delay` seconds after it has been sent at `rate` bytes/s."""
    waiting, there = deque[tuple[float, bytes]](), threading.Semaphore(0)

    def deliver() -> None:
        while True:
            there.acquire()
            due, packet = waiting.popleft()
            time.sleep(max(0.0, due - time.monotonic()))
            os.write(target, packet)

    threading.Thread(target=deliver, daemon=True).start()
    free = 0.0
    while True:
        try:
            packet = os.read(source, MTU + 100)
        except OSError:  # its namespace is gone
            return
        now = time.monotonic()
        if free - now < QUEUED:
            free = max(free, now) + len(packet) / rate
            waiting.append((free + delay, packet))
            there.release()


@contextmanager
def machines(delay: float, rate: float) -> Iterator[list[list[str]]]:
    """Yield what commands of each machine begin with: two namespaces that a slow cable joins."""
    with ExitStack() as stack:
        names = [f"shardio-{os.getpid()}-{number}" for number in range(RANKS)]
        devices = [tun(f"slow{number}") for number in range(RANKS)]
        for number, name in enumerate(names):
            ip("netns", "add", name)
            stack.callback(ip, "netns", "delete", name)
            ip("link", "set", f"slow{number}", "netns", name)
            ip("-n", name, "link", "set", f"slow{number}", "mtu", f"{MTU}", "up")
            ip("-n", name, "link", "set", "lo", "up")
            ip("-n", name, "address", "add", f"10.79.0.{number + 1}/24", "dev", f"slow{number}")
        for source, target in (devices, devices[::-1]):
            threading.Thread(target=forward, args=(source, target, delay, rate), daemon=True).start()
        yield [["ip", "netns", "exec", name, "taskset", "-c", f"{number}"] for number, name in enumerate(names)]


def ip(*words: str) -> None:
    subprocess.run(["ip", *words], check=True)


def main() -> None:
    """Start the ranks, and report."""
    parser = options(__doc__, rounds=3)
    parser.add_argument("--steps", type=int, default=8, help="steps to time, a multiple of 8")
    parser.add_argument("--batch", type=int, default=256, help="images of a rank and step")
    parser.add_argument("--delay", type=float, default=20, help="round trip in milliseconds")
    parser.add_argument("--megabits", type=float, default=100, help="megabits per second in each direction")
    given = parser.parse_args()
    if "RANK" in os.environ:
        measure(given.steps, given.rounds, given.batch)
        return
    with machines(given.delay / 2000, given.megabits * 1e6 / 8) as prefixes:
        ranks = []
        for rank, prefix in enumerate(prefixes):
            variables: dict[str, object] = {"RANK": rank, "LOCAL_RANK": 0, "WORLD_SIZE": RANKS, "LOCAL_WORLD_SIZE": 1}
            variables |= {"MASTER_ADDR": "10.79.0.1", "MASTER_PORT": 29400, "OMP_NUM_THREADS": 1}
            variables |= {"GLOO_SOCKET_IFNAME": f"slow{rank}"}
            command = [*prefix, sys.executable, "-m", "benchmarks.slow_network", *sys.argv[1:]]
            environment = os.environ | {name: f"{value}" for name, value in variables.items()}
            output = subprocess.DEVNULL if rank else subprocess.PIPE
            ranks.append(subprocess.Popen(command, env=environment, stdout=output, text=True))
        rows, at = list[dict[str, Any]](), dict[str, float]()
        for line in ranks[0].stdout or ():
            at[line.strip()] = time.process_time()
            if line.startswith("{"):
                rows.append(json.loads(line) | {"relay": (at["end"] - at["begin"]) / given.steps})
        if any([process.wait() for process in ranks]):  # noqa: C419  # waits for all
            raise SystemExit("a rank has failed")

    def middle(name: str, figure: str) -> float:
        return float(median(row[figure] for row in rows if row["way"] == name))

    seconds = {name: middle(name, "seconds") for name in WAYS}
    result = {
        name: {
            "steps_per_second": round(1 / each, 3),
            "of_synchronous": round(seconds["synchronous"] / each, 3),
            "of_no_exchange": round(seconds["no exchange"] / each, 3),
            "rank_processor_seconds": round(middle(name, "busy"), 3),
            "relay_processor_seconds": round(middle(name, "relay"), 3),
        }
        for name, each in seconds.items()
    }
    for name, figures in result.items():
        print(
            f"{name:<34}{figures['steps_per_second']:6.2f} steps/s  {figures['of_synchronous']:5.2f} x  "
            f"{figures['of_no_exchange']:5.2f} of no exchange; processor time per step: rank "
            f"{figures['rank_processor_seconds']:5.2f} s, relay {figures['relay_processor_seconds']:5.2f} s",
            file=sys.stderr,
        )
    setting = {"delay_ms": given.delay, "megabits": given.megabits, "gradient_bytes": 4 * rows[0]["weights"]}
    finish(
        {**setting, "ranks": RANKS, "steps": given.steps, "rounds": given.rounds, "batch": given.batch, "ways": result},
        given.json,
    )


if __name__ == "__main__":
    main()
