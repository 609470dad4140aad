"""Run the trainer on real ranks: `torchrun`'s module starts this file, which reads its configuration from JSON."""

import json
import os
import subprocess
import sys
from pathlib import Path

from _ends import fail_if_threads_stay, watch

from shardio.train import TrainConfig, run


def torchrun(config: TrainConfig, ranks: int = 2, *, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    """Train on `ranks` processes; return their output and exit status."""
    described = Path(config.output).with_suffix(".json")
    described.write_text(json.dumps(config.to_dict()))
    return start(Path(__file__), str(described), ranks=ranks, seconds=seconds)


def start(script: Path, *arguments: str, ranks: int, seconds: float = 100) -> subprocess.CompletedProcess[str]:
    """Run a script on `ranks` processes; return their output and exit status."""
    here = Path(__file__).resolve().parent
    paths = [str(here), str(here.parent), str(here.parent.parent), os.environ.get("PYTHONPATH", "")]
    command = ["-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(ranks), str(script), *arguments]
    return subprocess.run(
        [sys.executable, *command],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=seconds,
    )


if __name__ == "__main__":
    watch()
    run(TrainConfig(**json.loads(Path(sys.argv[1]).read_text())))
    fail_if_threads_stay()
