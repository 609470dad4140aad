"""A Slurm cluster of this machine alone: its daemons, its jobs, and what the jobs run."""

import os
import re
import secrets
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import final

import pytest

PATH = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", ""), "/usr/sbin"])
"""Where jobs find `python`, and where Debian has the daemons."""

_DEVICES = ("/dev/null", "/dev/zero", "/dev/full", "/dev/random")
"""What stands for GPUs."""

# The daemons, and all that they start, are in a namespace of processes, which ends with its first one: the shell, which
# ends when its standard input is closed, and that happens however the tests end. --force: the folders of pytest are
# private, which is a warning only, as all users are root.
_DAEMONS = """\
munged --foreground --force --key-file=munge.key --socket=$PWD/munge.socket --pid-file=$PWD/munged.pid \
    --seed-file=$PWD/munged.seed >munged.log 2>&1 &
for _ in $(seq 1000); do [ -e munge.socket ] && break; sleep 0.01; done
slurmctld -D -c >slurmctld.log 2>&1 &
for node in {nodes}; do {variables} slurmd -D -N $node >slurmd-$node.log 2>&1 & done
cat
"""

# Slurm binds tasks to the CPUs of its configuration; those that this machine lacks are taken from the first ones again.
_FOLDED_CPUS = """\
#define _GNU_SOURCE
#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

int sched_setaffinity(pid_t process, size_t size, const cpu_set_t *wanted) {
    int (*set)(pid_t, size_t, const cpu_set_t *) = dlsym(RTLD_NEXT, "sched_setaffinity");
    long there = sysconf(_SC_NPROCESSORS_ONLN);
    cpu_set_t folded;
    CPU_ZERO(&folded);
    for (size_t cpu = 0; cpu < 8 * size && cpu < CPU_SETSIZE; cpu++)
        if (CPU_ISSET_S(cpu, size, wanted))
            CPU_SET(cpu % there, &folded);
    return set(process, sizeof folded, &folded);
}
"""

_CONFIGURATION = """\
ClusterName=test
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
AuthInfo=socket={folder}/munge.socket
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
ProctrackType=proctrack/linuxproc
TaskPlugin={binding}
MpiDefault=none
MailProg=/bin/true
SelectType=select/cons_tres
SelectTypeParameters=CR_Core
SchedulerParameters=sched_interval=1,bf_interval=1
LaunchParameters=use_interactive_step
SlurmdParameters=config_overrides
ReturnToService=2
FirstJobId={first}
GresTypes=gpu
PartitionName=all Nodes=ALL Default=YES
PartitionName=booster Nodes=ALL
"""


@final
@dataclass(frozen=True, slots=True)
class Nodes:
    """The nodes of a cluster, with CPUs and GPUs that this machine need not have: options of sbatch ask for them.

    Attributes:
        names: one for each node; all are this machine.
        sockets, cores, threads: of a node, cores of a socket, threads of a core.
        gpus: of a node.
        bound: whether tasks are bound to CPUs.
    """

    names: tuple[str, ...] = ("localhost",)
    sockets: int = 1
    cores: int = 4
    threads: int = 1
    gpus: int = 2
    bound: bool = False

    def configuration(self, ports: list[int]) -> str:
        """Lines of slurm.conf."""
        has = f"SocketsPerBoard={self.sockets} CoresPerSocket={self.cores} ThreadsPerCore={self.threads}"
        has += f" Gres=gpu:{self.gpus} Feature=gpu"
        here = "NodeHostname=localhost NodeAddr=127.0.0.1"
        places = zip(self.names, ports, strict=True)
        return "".join(f"NodeName={name} {here} Port={port} {has}\n" for name, port in places)

    def variables(self, folder: Path) -> str:
        """Variables of slurmd, as a shell has them before a command."""
        if not self.bound:
            return ""
        source, library = folder / "folded_cpus.c", folder / "folded_cpus.so"
        source.write_text(_FOLDED_CPUS)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=True)
        return f"HWLOC_SYNTHETIC='pack:{self.sockets} core:{self.cores} pu:{self.threads}' LD_PRELOAD={library}"


ONE_NODE = Nodes()


@final
@dataclass(frozen=True, slots=True)
class Cluster:
    """A cluster: where its state and logs are, and the variables of commands that use it and of jobs."""

    folder: Path
    environ: dict[str, str]

    def run(self, *command: object, seconds: float = 120) -> str:
        """Run a command of Slurm; return what it printed, or fail with the logs."""
        words = [str(word) for word in command]
        try:
            done = subprocess.run(
                words,
                cwd=self.folder,
                env=self.environ,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                timeout=seconds,
            )
        except subprocess.TimeoutExpired as expired:
            self.fail(f"{' '.join(words)}: longer than {seconds} s\n{expired.stdout!r}\n{expired.stderr!r}")
        if done.returncode:
            self.fail(f"{' '.join(words)}: exit code {done.returncode}\n{done.stdout}\n{done.stderr}")
        return done.stdout

    def submit(self, *command: object) -> "BatchJob":
        output = self.folder / f"job-{secrets.token_hex(4)}.out"
        number = self.run("sbatch", "--parsable", "--output", output, *command).strip()
        return BatchJob(self, number, output)

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = 120) -> None:
        """Wait until something holds, or fail with the logs."""
        deadline = time.monotonic() + seconds
        while not holds():
            if time.monotonic() > deadline:
                self.fail(f"{what}: not within {seconds} s")
            time.sleep(0.1)

    def is_idle(self) -> bool:
        asked = subprocess.run(["sinfo", "-h", "-o", "%t"], env=self.environ, capture_output=True, text=True)
        return asked.stdout.strip() == "idle"

    def fail(self, message: str) -> None:
        """Fail with a message, and the ends of all logs and outputs."""
        logs = [*self.folder.glob("*.log"), *self.folder.glob("*.out")]
        ends = (f"--- {log.name}\n{log.read_text(errors='replace')[-3000:]}" for log in sorted(logs))
        pytest.fail("\n".join([message, *ends]))


@final
@dataclass(frozen=True, slots=True)
class BatchJob:
    """A job of sbatch, and the file that it writes to."""

    cluster: Cluster
    number: str
    output: Path

    def facts(self) -> dict[str, str]:
        told = self.cluster.run("scontrol", "show", "job", "--oneliner", self.number)
        return dict(re.findall(r"(\w+)=(\S+)", told))

    def signal(self, name: str) -> None:
        self.cluster.run("scancel", f"--signal={name}", self.number)

    def wait_for_requeue(self, restarts: int) -> None:
        """Wait until the job is queued for the nth time again."""

        def is_queued() -> bool:
            facts = self.facts()
            return facts["JobState"] == "PENDING" and facts["Restarts"] == str(restarts)

        self.wait(f"job {self.number} queued again", is_queued)

    def start_soon(self) -> None:
        """Start the queued job without the two minutes that Slurm waits after a requeue."""
        # In the next second: Slurm takes a job that starts in the second of its end for the one that has ended.
        self.cluster.run("scontrol", "update", f"JobId={self.number}", "StartTime=now+1")

    def wait(self, what: str, holds: Callable[[], bool], seconds: float = 120) -> None:
        """Wait until something holds; fail if the job has ended before, or it takes too long."""

        def holds_or_ended() -> bool:
            state = self.facts()["JobState"]  # first: what holds only at the end still counts
            held = holds()
            if not held and state in ("COMPLETED", "FAILED", "CANCELLED", "NODE_FAIL", "TIMEOUT"):
                self.cluster.fail(f"{what}: job {self.number} is {state}")
            return held

        self.cluster.wait(what, holds_or_ended, seconds)

    def wait_for_end(self) -> None:
        self.wait(f"end of job {self.number}", lambda: self.facts()["JobState"] == "COMPLETED")


def missing(*, bound: bool = False) -> str | None:
    """Why there can be no cluster here, if so; `bound` as of Nodes."""
    wanted = ["munged", "slurmctld", "slurmd", "srun", "sbatch", "scancel", "scontrol", "unshare", *["cc"] * bound]
    if absent := [name for name in wanted if shutil.which(name, path=PATH) is None]:
        return f"needs slurm-wlm and munge: no {', '.join(absent)}"
    if os.geteuid() != 0:
        return "Slurm's daemons need root"
    return None


@contextmanager
def cluster(folder: Path, variables: dict[str, str], nodes: Nodes = ONE_NODE) -> Iterator[Cluster]:
    """Start a cluster in an empty folder, whose path is short as it will hold a socket; end it and its jobs at the end.

    Its jobs have these variables besides those of this process.
    """
    for name in ("state", *(f"spool-{name}" for name in nodes.names)):
        (folder / name).mkdir()
    (folder / "munge.key").write_bytes(secrets.token_bytes(128))
    (folder / "munge.key").chmod(0o600)
    host = socket.gethostname().partition(".")[0]
    port, *ports = _free_ports(1 + len(nodes.names))
    configuration = _CONFIGURATION.format(
        folder=folder,
        host=host,
        port=port,
        binding="task/affinity" if nodes.bound else "task/none",
        first=1 + secrets.randbelow(60_000),  # ranks make their port of it, and tests may run at the same time
    )
    (folder / "slurm.conf").write_text(configuration + nodes.configuration(ports))
    devices = [f"Name=gpu File={device}\n" for device in _DEVICES[: nodes.gpus]]
    (folder / "gres.conf").write_text("".join(f"NodeName={name} {one}" for name in nodes.names for one in devices))
    outer = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "SBATCH", "SRUN"))}
    environ = outer | {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf")} | variables
    daemons = _DAEMONS.format(nodes=" ".join(nodes.names), variables=nodes.variables(folder))
    command = ["unshare", "--fork", "--pid", "--mount-proc", "--kill-child", "sh", "-c", daemons]
    # In a session of its own, it is not ended by Ctrl-C, which also ends the tests, but by what follows from that.
    with subprocess.Popen(command, cwd=folder, stdin=subprocess.PIPE, env=environ, start_new_session=True):
        made = Cluster(folder, environ)
        made.wait("an idle node", made.is_idle, 30)
        yield made
        # Popen's own end of the `with` block closes the standard input, and waits.


def _free_ports(count: int) -> list[int]:
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
