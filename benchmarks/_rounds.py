"""The comparison itself: prepare all peers, then run them alternately in rounds.

A peer that fails is recorded with its reason, and the others continue.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from benchmarks._environments import NotInstalled, environment
from benchmarks._limits import LABELS, LIMIT, Limit, prepare_limit
from benchmarks._peers import Peer, fingerprint, load
from benchmarks._processes import PeerFailed, chill, run_peer
from benchmarks._results import in_round
from benchmarks._store import kept
from benchmarks._workloads import Workload

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Plan:
    """The settings of a comparison.

    Attributes:
        workload: the same for all peers, but for the variant.
        source: the folder of photos, or the file of arrays.
        work: where environments and prepared data are kept.
        rounds: the number of runs of each peer.
        seconds: the minimum duration of the timed epochs of one run.
        cold: drop a peer's files from the page cache before its turn.
        pythons: interpreters by library, to use instead of creating environments.
    """

    workload: Workload
    source: Path
    work: Path
    rounds: int = 5
    seconds: float = 1.5
    cold: bool = False
    pythons: Mapping[str, Path] = field(default_factory=dict)


@dataclass
class Outcome:
    """The outcome of one peer.

    Attributes:
        rounds: the result of each round, or None.
        failure: why it ended early, or "".
        label: what was run.
    """

    rounds: list[dict[str, Any] | None] = field(default_factory=list)
    failure: str = ""
    label: str = ""


@dataclass(frozen=True, slots=True)
class Ready:
    """A peer with its environment and data prepared."""

    library: str
    workload: Workload
    python: Path
    prepared: Path
    warm: Path


def compare(plan: Plan, peers: list[Peer], say: Say) -> dict[str, Outcome]:
    """Run all rounds; return the outcome of every peer and of the limit, by name."""
    outcomes = {name: Outcome() for name in (LIMIT, *(peer.name for peer in peers))}
    outcomes[LIMIT].label = LABELS[plan.workload.name]
    ready: dict[str, Ready | Limit] = {}
    try:
        ready[LIMIT] = prepare_limit(plan.workload, plan.source, plan.work)
    except PeerFailed as error:
        outcomes[LIMIT].failure = f"build: {error}"
    for peer in peers:
        outcomes[peer.name].label = load(peer.library).label(replace(plan.workload, variant=peer.variant))
        try:
            ready[peer.name] = make_ready(plan, peer, say)
        except NotInstalled as error:
            outcomes[peer.name].failure = f"install: {error}"
        except PeerFailed as error:
            outcomes[peer.name].failure = f"prepare: {error}"
        if outcomes[peer.name].failure:
            say(f"{peer.name} failed: {last_line(outcomes[peer.name].failure)}")
    for number in range(plan.rounds):
        for name in in_round(list(ready), number):
            _turn(plan, name, ready, outcomes[name], f"round {number + 1}/{plan.rounds}", say)
        for outcome in outcomes.values():
            outcome.rounds += [None] * (number + 1 - len(outcome.rounds))
    return outcomes


def _turn(plan: Plan, name: str, ready: dict[str, Ready | Limit], outcome: Outcome, where: str, say: Say) -> None:
    try:
        result = measure(plan, ready[name])
    except PeerFailed as error:
        outcome.failure = f"{where}: {error}"
        del ready[name]
        say(f"{where}  {name} failed: {last_line(str(error))}")
        return
    outcome.rounds.append(result)
    outcome.label = result.get("label", outcome.label)
    say(f"{where}  {name} {result['samples_per_s']:,.0f}/s")


def last_line(failure: str) -> str:
    """The last line of a failure, where programs state the reason."""
    return failure.strip().splitlines()[-1].strip()


def measure(plan: Plan, item: Ready | Limit) -> dict[str, Any]:
    """Run a peer, or the limit, once. Raises PeerFailed."""
    if isinstance(item, Limit):
        return dict(item.measure())
    if plan.cold:
        chill(item.prepared)
    order = {
        "task": "measure",
        "prepared": str(item.prepared),
        "warm": str(item.warm),
        "seconds": 0.0 if plan.cold else plan.seconds,  # only the first epoch is cold
    }
    return run_peer(item.python, item.library, item.workload, order, plan.work)


def make_ready(plan: Plan, peer: Peer, say: Say) -> Ready:
    """Create the peer's environment and data, unless they exist. Raises NotInstalled or PeerFailed."""
    workload = replace(plan.workload, variant=peer.variant)
    python = plan.pythons.get(peer.library)
    if python is None:
        say(f"{peer.name} environment")
        python = environment(peer.library, plan.work)
    full = plan.work / "data" / f"{workload.name}-{workload.count}" / peer.name

    def pack(out: Path, small: bool) -> None:
        say(f"{peer.name} packs its data")
        order = {"task": "prepare", "source": str(plan.source), "prepared": str(out), "small": small}
        run_peer(python, peer.library, workload, order, plan.work)

    # Prepared data depends on the peer's settings, the source and the versions that wrote it.
    stamp = "\n".join([fingerprint(peer.library), str(plan.source), *load(peer.library).REQUIREMENTS])
    prepared = kept(full, stamp, lambda out: pack(out, small=False))
    if not plan.cold:
        return Ready(peer.library, workload, python, prepared, prepared)
    few = full.with_name(f"{peer.name}-{workload.threads}-warm-up")
    return Ready(peer.library, workload, python, prepared, kept(few, stamp, lambda out: pack(out, small=True)))
