"""Compare how fast other loaders deliver the same samples on this machine.

    python benchmarks/photos.py /tmp/photos
    python benchmarks/compare.py --workload exact --photos /tmp/photos --json exact.json --plot exact.png
    python benchmarks/compare.py --workload tensors --peers shardio,ffcv,dali --rounds 3
    python benchmarks/compare.py --workload records --peers shardio-hdf5,torch --count 20000 --rounds 1
    python benchmarks/compare.py --workload fast --list

Each peer runs in an environment of its own, created below --work and kept, as is its copy of the data. The first
run takes about 15 GB and ten minutes of installation for all peers. In every round each peer runs once in a fresh
process: a warm-up epoch, whose batches are checked, then timed epochs. See benchmarks/README.md.
"""

import argparse
import sys
from dataclasses import replace
from pathlib import Path

from benchmarks import _report
from benchmarks._peers import Peer, libraries, load, peers, reference
from benchmarks._results import options, sayer
from benchmarks._rounds import Plan, compare
from benchmarks._summary import summarise
from benchmarks._workloads import FASHION, WORKLOADS, Workload, make_arrays, make_small_images


def main(arguments: list[str] | None = None) -> int:
    """Run from the command line; return 0, or 1 if a peer failed."""
    parser = _parser()
    args = parser.parse_args(arguments)
    try:
        chosen = peers(args.workload, args.peers)
    except ValueError as error:
        parser.error(str(error))
    workload = _workload(args)
    if args.list:
        print(listing(workload, chosen))
        return 0
    if args.plot is not None:
        _check_plot(parser)
    plan = Plan(
        workload,
        _source(parser, args, workload),
        args.work.absolute(),
        rounds=args.rounds,
        seconds=args.seconds,
        cold=args.cold,
        pythons={name: Path(path).absolute() for name, path in args.python_of},
    )
    base = reference(workload.name)
    rows = summarise(compare(plan, chosen, sayer()), base)
    if args.json is not None:
        _report.write_json(args.json, _report.as_json(plan, rows, base, unsupported(workload.name)))
    if args.plot is not None:
        _report.plot(args.plot, rows, f"{workload.name}: batch {workload.batch_size}, {workload.threads} threads")
    print(_report.table(rows, workload.sample_bytes))
    return 1 if any(row.failure for row in rows) else 0


def listing(workload: Workload, chosen: list[Peer]) -> str:
    """Print what each chosen peer runs, and the libraries that do not support the workload."""
    lines = [f"{peer.name:22} {load(peer.library).label(replace(workload, variant=peer.variant))}" for peer in chosen]
    return "\n".join([*lines, *(f"{name:22} {why}" for name, why in unsupported(workload.name).items())])


def unsupported(workload: str) -> dict[str, str]:
    """The libraries that do not support a workload."""
    return {name: f"does not run {workload}" for name in libraries() if workload not in load(name).WORKLOADS}


def _parser() -> argparse.ArgumentParser:
    parser = options(__doc__, photos=True)
    parser.add_argument("--workload", required=True, choices=sorted(WORKLOADS))
    parser.add_argument("--peers", default="all", help="all, or comma-separated names of libraries or single variants")
    parser.add_argument("--threads", type=_positive, default=2, help="threads, or worker processes, of each peer")
    parser.add_argument("--count", type=_positive, help="number of samples (default: the workload's)")
    parser.add_argument("--batch-size", type=_positive, help="samples per batch (default: the workload's)")
    parser.add_argument("--seconds", type=float, default=1.5, help="minimum duration of the timed epochs")
    parser.add_argument(
        "--work",
        type=Path,
        default=Path("/tmp/shardio-compare"),
        help="folder for environments and data, kept between runs",
    )
    parser.add_argument("--cold", action="store_true", help="drop the peer's files from the page cache before its turn")
    parser.add_argument("--plot", type=Path, metavar="FILE.png")
    parser.add_argument("--list", action="store_true", help="print what would run, and exit")
    parser.add_argument(
        "--python-of",
        type=_assignment,
        action="append",
        default=[],
        metavar="LIBRARY=PATH",
        help="interpreter for a library, instead of a new environment",
    )
    return parser


def _workload(args: argparse.Namespace) -> Workload:
    own = WORKLOADS[args.workload]
    return replace(
        own, count=args.count or own.count, batch_size=args.batch_size or own.batch_size, threads=args.threads
    )


def _source(parser: argparse.ArgumentParser, args: argparse.Namespace, workload: Workload) -> Path:
    """The folder of photos, or the file of arrays, created if missing."""
    if workload.count < workload.batch_size:
        parser.error(f"--count must be at least one batch of {workload.batch_size}, got {workload.count}")
    if workload.data != "photos":
        path: Path = args.work.absolute() / "source" / f"{workload.name}-{workload.count}.npy"
        if workload.name == "fashion" and not FASHION.is_dir():
            parser.error(f"{FASHION} is missing: apt-get install dataset-fashion-mnist")
        if workload.data == "small":
            make_small_images(workload, path, args.photos)
        else:
            make_arrays(workload, path)
        return path
    found = sum(1 for _ in args.photos.rglob("*.jpg"))
    if found < workload.count:
        parser.error(
            f"--photos {args.photos}: {workload.count} are needed, {found} are there; see benchmarks/photos.py"
        )
    folder: Path = args.photos.absolute()
    return folder


def _check_plot(parser: argparse.ArgumentParser) -> None:
    try:
        import matplotlib
    except ModuleNotFoundError:
        parser.error("--plot needs matplotlib: pip install matplotlib")
    del matplotlib


def _positive(text: str) -> int:
    value = int(text)
    if value < 1:
        raise argparse.ArgumentTypeError(f"must be at least 1, got {value}")
    return value


def _assignment(text: str) -> tuple[str, str]:
    name, sign, path = text.partition("=")
    if not sign or name not in libraries() or not Path(path).is_file():
        raise argparse.ArgumentTypeError(f"must be LIBRARY=PATH to an interpreter, got {text!r}")
    return name, path


if __name__ == "__main__":
    sys.exit(main())
