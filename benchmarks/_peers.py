"""The peers: one module `bench_<name>.py` each, found by name, and their requirements.

A module has three functions,

    prepare(workload, source, out)    pack the common source data into the peer's own format, below the folder `out`
    epoch(workload, prepared)         yield the batches of one epoch; the next call is the next epoch of the same loader
    label(workload)                   describe what runs, and where it does more or less than the others

and constants: WORKLOADS, REQUIREMENTS, VERSIONS, and those of DEFAULTS that it needs. The runner imports it, too,
so that the functions must import the peer's library themselves.
"""

import hashlib
import importlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Protocol, cast

from benchmarks._workloads import Batch, Workload

HERE = Path(__file__).parent
REFERENCE = "shardio"
DEFAULTS: Mapping[str, object] = {
    "DEBIAN": (),
    "WITHOUT_DEPENDENCIES": (),
    "STAND_INS": (),
    "ENVIRONMENT": MappingProxyType({}),
    "ELASTIC": "",
}


class Module(Protocol):
    """A peer's module."""

    WORKLOADS: Mapping[str, tuple[str, ...]]
    """The workloads that it supports, each with its variants, the main one first; ("",) where it has but one way."""
    REQUIREMENTS: tuple[str, ...]
    """For pip. Where one of them is torch, that is installed before all else."""
    VERSIONS: tuple[str, ...]
    """The distributions whose versions are reported."""
    DEBIAN: tuple[str, ...]
    """Debian packages that must be installed."""
    WITHOUT_DEPENDENCIES: tuple[str, ...]
    """For pip, with --no-deps: what asks for things that it does not need here."""
    STAND_INS: tuple[str, ...]
    """Folders of `stand_ins/` that go on the module path."""
    ENVIRONMENT: Mapping[str, str]
    """Environment variables to set."""

    def prepare(self, workload: Workload, source: Path, out: Path) -> None:
        """Pack the source data."""

    def epoch(self, workload: Workload, prepared: Path) -> Iterator[Batch]:
        """Yield the batches of one epoch."""

    def label(self, workload: Workload) -> str:
        """Describe what runs."""


@dataclass(frozen=True, slots=True)
class Peer:
    """One row of the comparison.

    Attributes:
        library: the module's name without `bench_`.
        variant: one of the module's variants for the workload.
    """

    library: str
    variant: str = ""

    @property
    def name(self) -> str:
        """`library`, or `library-variant`."""
        return f"{self.library}-{self.variant}" if self.variant else self.library


def libraries(kind: str = "bench") -> tuple[str, ...]:
    """All peers' modules of a kind by name: shardio first, the others sorted."""
    names = sorted(path.stem.removeprefix(f"{kind}_") for path in HERE.glob(f"{kind}_*.py"))
    return tuple(sorted(names, key=lambda name: name != REFERENCE))


def load(library: str, kind: str = "bench") -> Module:
    """Import a peer's module of a kind, and add the defaults of constants that it leaves out."""
    module = importlib.import_module(f"benchmarks.{kind}_{library}")
    for name, value in DEFAULTS.items():
        if not hasattr(module, name):
            setattr(module, name, value)
    return cast(Module, module)


def peers(workload: str, wanted: str = "all") -> list[Peer]:
    """The peers that `wanted` names: "all", or names of libraries (all of their variants) and of single variants.

    A library that does not support the workload is left out of "all"; asked for by name, it raises ValueError, as an
    unknown name does.
    """
    everyone = {
        library: [Peer(library, v) for v in load(library).WORKLOADS.get(workload, ())] for library in libraries()
    }
    if wanted == "all":
        return [peer for variants in everyone.values() for peer in variants]
    chosen: dict[str, Peer] = {}
    for name in wanted.split(","):
        found = everyone.get(name, [peer for variants in everyone.values() for peer in variants if peer.name == name])
        if not found:
            known = ", ".join(peer.name for variants in everyone.values() for peer in variants)
            raise ValueError(f"no peer {name!r} runs {workload!r}; those that do: {known}")
        chosen |= {peer.name: peer for peer in found}
    return list(chosen.values())


def reference(workload: str) -> str:
    """The name of the shardio variant that ratios refer to, its first."""
    return Peer(REFERENCE, load(REFERENCE).WORKLOADS[workload][0]).name


def fingerprint(library: str) -> str:
    """A text that changes with the peer's module and its environment; prepared data is kept while it does not."""
    texts = [(HERE / name).read_bytes() for name in (f"bench_{library}.py", "_workloads.py")]
    return hashlib.sha256(b"".join(texts)).hexdigest()[:16]
