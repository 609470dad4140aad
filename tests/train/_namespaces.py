"""Two machines on one: network namespaces that a virtual cable joins, which can be cut."""

import os
import shutil
import signal
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import final

import pytest

INTERFACE = "eth0"


@final
@dataclass(frozen=True, slots=True)
class Machine:
    """A network namespace, and the IPv4 address of its end of the cable."""

    name: str
    address: str

    def command(self, arguments: Sequence[str]) -> list[str]:
        return ["ip", "netns", "exec", self.name, *arguments]

    def ip(self, *arguments: str) -> None:
        _ip("-n", self.name, *arguments)


def cut(machine: Machine) -> None:
    """Cut the cable: what either end sends from now on is lost, and nobody is told."""
    machine.ip("link", "set", INTERFACE, "down")


def mend(machine: Machine) -> None:
    """Join the cable again at the end where it was cut."""
    machine.ip("link", "set", INTERFACE, "up")


@contextmanager
def machines_on_a_switch(count: int) -> Iterator[list[Machine]]:
    """Yield machines that a switch joins; skip the test, with the reason, where they cannot be made."""
    if shutil.which("ip") is None:
        pytest.skip("network namespaces need the command ip (iproute2)")
    switch = Machine(f"shardio-{os.getpid()}-switch", "")
    machines = [Machine(f"shardio-{os.getpid()}-{end}", f"10.78.0.{end}") for end in range(1, count + 1)]
    try:
        try:
            _ip("netns", "add", switch.name)
            switch.ip("link", "add", "bridge", "type", "bridge")
            switch.ip("link", "set", "bridge", "up")
            for number, machine in enumerate(machines):
                _ip("netns", "add", machine.name)
                machine.ip("link", "set", "lo", "up")
                port = f"port{number}"
                machine.ip("link", "add", INTERFACE, "type", "veth", "peer", "name", port, "netns", switch.name)
                switch.ip("link", "set", port, "master", "bridge")
                switch.ip("link", "set", port, "up")
                machine.ip("address", "add", f"{machine.address}/24", "dev", INTERFACE)
                machine.ip("link", "set", INTERFACE, "up")
        except subprocess.CalledProcessError as error:
            pytest.skip(f"this user cannot make a switch of network namespaces: {error.stderr.strip()}")
        yield machines
    finally:
        for machine in (*machines, switch):
            _remove(machine)


def slow_down(machine: Machine, megabits: int) -> None:
    """Limit what a machine sends; skip the test, with the reason, where the kernel cannot."""
    limit = ["tc", "qdisc", "add", "dev", INTERFACE, "root", "tbf", "rate", f"{megabits}mbit", "burst", "16kb"]
    done = subprocess.run(machine.command([*limit, "latency", "200ms"]), capture_output=True, text=True)
    if done.returncode:
        pytest.skip(f"this kernel cannot slow a network down: {done.stderr.strip()}")


def _remove(machine: Machine) -> None:
    """Kill what still runs on a machine, as torchrun's ranks do if it was killed, and remove it, if it exists."""
    running = subprocess.run(["ip", "netns", "pids", machine.name], capture_output=True, text=True)
    for process in running.stdout.split():
        with suppress(ProcessLookupError):
            os.kill(int(process), signal.SIGKILL)
    subprocess.run(["ip", "netns", "delete", machine.name], capture_output=True)  # and its end of the cable


def _ip(*arguments: str) -> None:
    subprocess.run(["ip", *arguments], check=True, capture_output=True, text=True)
