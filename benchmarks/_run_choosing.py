"""One rank of benchmarks/choosing.py, in its library's environment: jobs one after another, each in a forked process.

    python -m benchmarks._run_choosing ORDER.json RESULT.json

The library is imported once. A job that fails, or doesn't end in time, has an error in words instead of its steps.
"""

import importlib
import json
import os
import signal
import sys
import time
from functools import partial
from itertools import islice
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any, cast

from benchmarks._choosing import NO_STATE, RANKS, Chooser, Place, checked, feature
from benchmarks._peers import load as load_peer
from benchmarks._run_peer import versions

KIND = "choose"
JOB_SECONDS = 60.0
ERROR_LENGTH = 300


def load(library: str) -> Chooser:
    """A library's module."""
    return cast(Chooser, load_peer(library, KIND))


def run(module: Chooser, order: dict[str, Any], job: dict[str, Any]) -> dict[str, Any]:
    """The steps that this rank takes, from the start of an epoch or from a state; a job `stop` leaves one."""
    place = Place(Path(order["folder"]), order["rank"], order["world"], job["elastic"], job["global_batch"])
    if job["mode"] == "derive":
        module.derive(place, job["name"], partial(feature, place.folder / f"{job['name']}.calls"))
        return {"steps": []}
    if job["mode"] == "derived":
        return {"steps": [checked(*zip(*module.derived(place.folder, job["name"]), strict=True))]}
    state = f"state-{job['task']}-{'elastic' if job['elastic'] else 'plain'}"
    feed = module.feed(job["task"], place)
    if job["mode"] == "resume":
        feed.load(place.folder / f"{state}-{place.rank % RANKS}")  # a fifth rank takes the first one's
    steps = list(islice(feed, job["steps"]))
    if job["mode"] == "stop":
        feed.save(place.folder / f"{state}-{place.rank}")
    return {"steps": steps}


def in_a_process(module: Chooser, order: dict[str, Any], job: dict[str, Any], out: Path) -> dict[str, Any]:
    """Run a job in a forked process, and return its steps or its error."""
    out.unlink(missing_ok=True)
    child = os.fork()
    if not child:
        try:
            os.environ["MASTER_PORT"] = str(job["port"])
            if job["mode"] == "derive":
                os.setpgrp()  # a killed job dies with its workers, and its runner lives on
            result = run(module, order, job)
        except NotImplementedError:
            result = {"error": NO_STATE}
        except Exception as error:  # noqa: BLE001 - any error is a result here
            text = " ".join(str(error).split()).partition(". ")[0]
            result = {"error": f"{type(error).__name__}: {text}"[:ERROR_LENGTH]}
        out.write_text(json.dumps(result))
        sys.stdout.flush()
        os._exit(0)
    until = time.monotonic() + JOB_SECONDS
    while os.waitpid(child, os.WNOHANG)[0] == 0:
        if time.monotonic() > until:
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
            return {"error": f"no end after {JOB_SECONDS:.0f} s"}
        time.sleep(0.01)
    if not out.is_file():
        return {"error": "the process died"}
    made: dict[str, Any] = json.loads(out.read_text())
    return made


def main() -> None:
    """Run from the command line."""
    order, result = json.loads(Path(sys.argv[1]).read_text()), Path(sys.argv[2])
    module, folder = load(order["library"]), Path(order["folder"])
    made: dict[str, Any] = {"versions": versions(module.VERSIONS)}
    if order["do"] == "prepare":
        module.prepare(folder)
    elif order["do"] == "grow":
        module.grow(folder)
    else:
        # One for all jobs: a job's own would remove shared memory after its end, which may be the next job's by then.
        resource_tracker.ensure_running()
        for name in order["imports"]:
            importlib.import_module(name)
        made["jobs"] = [in_a_process(module, order, job, result.with_suffix(".job")) for job in order["jobs"]]
    result.write_text(json.dumps(made))


if __name__ == "__main__":
    main()
