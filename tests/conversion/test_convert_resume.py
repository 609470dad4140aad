"""Conversions that are interrupted, resumed, shared by ranks, or locked out by each other."""

import fcntl
import json
import os
import random
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg
from _cli import unfinished
from _damage import read_record, write_record
from _datasets import photo_folders
from _time_limit import wait_until

import shardio
from shardio.care.verify import verify
from shardio.conversion.api import convert
from shardio.errors import BadSample, ConfigError, NotADataset, ShardioError, TooManyBad
from shardio.order.world import World
from shardio.output.base import RankState
from shardio.output.folder import FolderLead, FolderOutput
from shardio.output.locks import Lock, is_held
from shardio.output.records import JOURNAL, Record, Skipped
from shardio.output.shard_writer import WrittenShard
from shardio.system.directory import Directory
from shardio_converters.imagefolder import imagefolder
from shardio_converters.numpy import numpy

COMMAND = [sys.executable, "-m", "shardio", "convert", "imagefolder"]


@pytest.fixture(scope="module")
def photos(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """60 small JPEGs in two classes."""
    return photo_folders(tmp_path_factory.mktemp("source"))


@pytest.fixture(scope="module")
def whole(photos: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same images, converted without interruption."""
    out = tmp_path_factory.mktemp("whole") / "out"
    convert(imagefolder(photos), out, shard_size="2KB")
    return out


def files(root: Path) -> dict[str, bytes]:
    """All files of a dataset by name; fails if there is anything else."""
    return {path.name: path.read_bytes() for path in root.iterdir()}


class Breaking:
    """A source that fails at one sample until `at` changes."""

    def __init__(self, root: Path, at: int | None) -> None:
        self._source, self.at = imagefolder(root), at
        self.fields, self.metadata = self._source.fields, self._source.metadata
        self.read: list[int] = []

    def early(self) -> int:
        """The number of samples read from the first half, a few of them for the fingerprint of the source."""
        return sum(number < 30 for number in self.read)

    def sizes(self) -> np.ndarray:
        return self._source.sizes()

    def __getitem__(self, index: int) -> dict[str, Any]:
        self.read.append(index)
        if index == self.at:
            raise BadSample("the disk has a scratch")
        return dict(self._source[index])


def test_resume_keeps_the_shards_that_stand(photos: Path, whole: Path, tmp_path: Path) -> None:
    """Resuming does not rewrite finished shards, and gives the files of an uninterrupted conversion."""
    source = Breaking(photos, at=41)
    with pytest.raises(BadSample, match="scratch"):
        convert(source, tmp_path / "out", shard_size="2KB")
    with pytest.raises(NotADataset):
        shardio.open(tmp_path / "out")
    source.at, source.read = None, []
    convert(source, tmp_path / "out", shard_size="2KB", resume=True)
    assert 41 in source.read
    assert source.early() < 8
    assert files(tmp_path / "out") == files(whole)


def test_resume_writes_a_damaged_shard_anew(photos: Path, whole: Path, tmp_path: Path) -> None:
    """Resuming rewrites a shard that does not match its record."""
    source = Breaking(photos, at=59)
    with pytest.raises(BadSample):
        convert(source, tmp_path / "out", shard_size="2KB")
    (shard,) = (tmp_path / "out" / ".converting").rglob("shard-000001.tar")
    shard.write_bytes(shard.read_bytes()[:-7] + b"damaged")
    (shard.with_name("shard-000003.tar")).unlink()
    source.at = None
    convert(source, tmp_path / "out", shard_size="2KB", resume=True)
    assert files(tmp_path / "out") == files(whole)


@pytest.mark.parametrize("run", ["../../victim", "/tmp", "run-0123456789", "run-../..", "run-01234567", "", None, 7])
def test_a_journal_chooses_no_path(photos: Path, tmp_path: Path, run: Any) -> None:
    """Resuming refuses a plan whose run is not the name of a run, and touches no other folder."""
    source = Breaking(photos, at=41)
    with pytest.raises(BadSample):
        convert(source, tmp_path / "out", shard_size="2KB")
    plan = tmp_path / "out" / ".converting" / "plan.json"
    (folder,) = plan.parent.glob("run-*")
    folder.rename(tmp_path / "victim")
    before = {path: path.read_bytes() for path in (tmp_path / "victim").rglob("*") if path.is_file()}
    assert before
    plan.write_text(json.dumps(json.loads(plan.read_text()) | {"run": run}))
    source.at = None
    with pytest.raises(ShardioError, match=r"plan\.json.* (not the name of a run|not there); start over"):
        convert(source, tmp_path / "out", shard_size="2KB", resume=True)
    assert before == {path: path.read_bytes() for path in (tmp_path / "victim").rglob("*") if path.is_file()}


@pytest.mark.parametrize("name", ["../shard-000000.tar", "/etc/passwd", ".hidden", "a/b"])
def test_a_record_chooses_no_path(photos: Path, tmp_path: Path, name: str) -> None:
    """Resuming refuses a record whose shard is not a plain file name."""
    source = Breaking(photos, at=41)
    with pytest.raises(BadSample):
        convert(source, tmp_path / "out", shard_size="2KB")
    record = min((tmp_path / "out" / ".converting").rglob("*.done"))
    value = read_record(record)
    write_record(record, value | {"name": name})
    source.at = None
    with pytest.raises(ShardioError, match="is not the name of a file"):
        convert(source, tmp_path / "out", shard_size="2KB", resume=True)


def test_a_damaged_record_is_refused(photos: Path, tmp_path: Path) -> None:
    """Resuming finds a changed byte anywhere in a record, even where no shard contradicts it."""
    source = Breaking(photos, at=41)
    with pytest.raises(BadSample):
        convert(source, tmp_path / "out", shard_size="2KB")
    record = min((tmp_path / "out" / ".converting").rglob("*.done"))
    whole, source.at = record.read_bytes(), None
    write_record(record, read_record(record) | {"image_shapes": {"image": [1 << 32, 16]}})
    for data in (whole[:16] + record.read_bytes()[16:], bytes([whole[0] ^ 1]) + whole[1:], whole[:-1], whole[:9], b""):
        record.write_bytes(data)
        with pytest.raises(ShardioError, match="is damaged: it does not begin with its checksum; start over"):
            convert(source, tmp_path / "out", shard_size="2KB", resume=True)
    record.write_bytes(whole)
    convert(source, tmp_path / "out", shard_size="2KB", resume=True)


def test_skipping_goes_on_where_an_error_ended(photos: Path, tmp_path: Path) -> None:
    """A conversion that ended at a bad sample resumes with `skip`, but not from `skip` back to `raise`."""
    with pytest.raises(BadSample):
        convert(Breaking(photos, at=41), tmp_path / "out", shard_size="2KB")
    broken = Breaking(photos, at=41)
    made = convert(broken, tmp_path / "out", shard_size="2KB", on_error="skip", max_bad=1, resume=True)
    assert ([bad.number for bad in made.skipped], made.manifest.samples) == ([41], 59)
    assert broken.early() < 8
    with pytest.raises(BadSample):
        convert(Breaking(photos, at=59), tmp_path / "again", shard_size="2KB")
    with pytest.raises(TooManyBad) as error:
        convert(Breaking(photos, at=59), tmp_path / "again", shard_size="2KB", on_error="skip", max_bad=0, resume=True)
    assert [bad.number for bad in error.value.skipped] == [59]
    with pytest.raises(BadSample, match="scratch"):
        convert(Breaking(photos, at=59), tmp_path / "again", shard_size="2KB", resume=True)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shard_size": "3KB"}, "shard_size"),
        ({"container": "lmdb"}, "container"),
        ({"numbers": np.arange(9)}, "samples"),
    ],
)
def test_a_dataset_that_stands_is_not_another_one(
    photos: Path, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    """Resuming accepts a finished dataset only if it has the requested source and options."""
    convert(imagefolder(photos), tmp_path / "out", shard_size="2KB")
    with pytest.raises(ConfigError, match=f"the existing dataset has {named} .*: give the same source and opt"):
        convert(imagefolder(photos), tmp_path / "out", **{"shard_size": "2KB"} | options, resume=True)
    with shardio.create(tmp_path / "other", fields={"label": "int64"}) as writer:
        writer.append({"label": 1})
    with pytest.raises(ConfigError, match="the existing dataset has container None, not 'tar'"):
        convert(imagefolder(photos), tmp_path / "other", resume=True)


@pytest.mark.parametrize("options", [{"container": "hdf5", "compression": "lz4"}, {"compression": "gzip"}])
def test_wrong_options_leave_nothing_behind(photos: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Invalid options leave no files, so that a corrected command can follow."""
    with pytest.raises(ConfigError):
        convert(imagefolder(photos), tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()


def test_resume_of_what_is_whole_does_nothing(photos: Path, whole: Path, tmp_path: Path) -> None:
    """`resume` leaves a finished conversion alone and begins one that does not exist."""
    source = Breaking(photos, at=None)
    convert(source, tmp_path / "out", shard_size="2KB", resume=True)
    assert files(tmp_path / "out") == files(whole)
    source.read = []
    convert(source, tmp_path / "out", shard_size="2KB", resume=True)
    assert len(source.read) == 9  # eight for the fingerprint of the source, one for the hints


@pytest.mark.parametrize("where", range(4))
def test_a_publication_that_was_cut_off_goes_on(
    photos: Path, whole: Path, tmp_path: Path, where: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Resuming completes a publication that stopped after any of its renames, also over a dataset."""
    out = tmp_path / "out"
    convert(imagefolder(photos), out, shard_size="5KB")  # an older dataset, with other shards of the same names
    rename, left = Directory.rename, [where * 5 + 2]

    def stopping(source: Directory, name: str, target: Directory, new: str) -> None:
        if target.path == out:
            if not left[0]:
                raise KeyboardInterrupt
            left[0] -= 1
        rename(source, name, target, new)

    with monkeypatch.context() as patched:
        patched.setattr(Directory, "rename", stopping)
        with pytest.raises(KeyboardInterrupt):
            convert(imagefolder(photos), out, shard_size="2KB", overwrite=True)
    with pytest.raises(NotADataset):
        shardio.open(out)
    convert(imagefolder(photos), out, shard_size="2KB", resume=True)
    assert files(out) == files(whole)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shard_size": "3KB"}, "shard_size"),
        ({"container": "hdf5"}, "container"),
        ({"numbers": np.arange(59)}, "samples"),
    ],
)
def test_another_conversion_does_not_go_on_with_it(
    photos: Path, tmp_path: Path, options: dict[str, Any], named: str
) -> None:
    """A conversion with other settings refuses to resume, and the error names what differs."""
    with pytest.raises(BadSample):
        convert(Breaking(photos, at=59), tmp_path / "out", shard_size="2KB")
    with pytest.raises(ConfigError, match=f"the unfinished conversion has {named} "):
        convert(imagefolder(photos), tmp_path / "out", **({"shard_size": "2KB"} | options), resume=True)
    with pytest.raises(ConfigError, match="resume continues the unfinished conversion in it, overwrite starts over"):
        convert(imagefolder(photos), tmp_path / "out", shard_size="2KB")
    convert(imagefolder(photos), tmp_path / "out", shard_size="3KB", overwrite=True)
    assert len(shardio.open(tmp_path / "out")) == 60


def test_another_source_does_not_go_on_with_it(photos: Path, tmp_path: Path) -> None:
    """A source that changed in between is refused."""
    copy = tmp_path / "src"
    subprocess.run(["cp", "-r", str(photos), str(copy)], check=True)
    with pytest.raises(BadSample):
        convert(Breaking(copy, at=59), tmp_path / "out", shard_size="2KB")
    (copy / "cat" / "00.jpg").write_bytes(jpeg(60, 60))
    with pytest.raises(ConfigError, match="sizes and order"):
        convert(imagefolder(copy), tmp_path / "out", shard_size="2KB", resume=True)


def test_an_old_dataset_stays_until_the_new_one_is_whole(photos: Path, tmp_path: Path) -> None:
    """A conversion that overwrites a dataset keeps it until all shards are finished, and can be resumed."""
    convert(imagefolder(photos), tmp_path / "out", shard_size="9KB")
    before = shardio.open(tmp_path / "out").manifest
    source = Breaking(photos, at=59)
    with pytest.raises(BadSample):
        convert(source, tmp_path / "out", shard_size="2KB", overwrite=True)
    assert shardio.open(tmp_path / "out").manifest.to_json() == before.to_json()
    assert verify(shardio.open(tmp_path / "out"), deep=True).problems == ()
    source.at, source.read = None, []
    convert(source, tmp_path / "out", shard_size="2KB", overwrite=True, resume=True)
    assert source.early() < 8
    assert len(shardio.open(tmp_path / "out").manifest.shards) > len(before.shards)


def test_two_conversions_refuse_each_other(photos: Path, whole: Path, tmp_path: Path) -> None:
    """A second conversion fails and names the process that holds the lock; the lock ends with that process."""
    holder = (
        "import sys, time; from shardio.output.locks import Lock\n"
        "from shardio.system.directory import Directory\n"
        "lock = Lock(Directory(sys.argv[1]), 'lock', 'a test'); print('held', flush=True); time.sleep(600)"
    )
    out = tmp_path / "out"
    (out / ".converting").mkdir(parents=True)
    process = subprocess.Popen(
        [sys.executable, "-c", holder, str(out / ".converting")], stdout=subprocess.PIPE, text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "held\n"
    for options in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(ConfigError, match=f"another conversion is already running here: process {process.pid} on "):
            convert(imagefolder(photos), out, shard_size="2KB", **options)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    convert(imagefolder(photos), out, shard_size="2KB", resume=True)
    assert files(out) == files(whole)


def test_a_look_at_a_lock_does_not_refuse_it(tmp_path: Path) -> None:
    """Ranks that look whether the first one leads hold its lock for a moment: it waits for them."""
    folder = Directory(tmp_path)
    Lock(folder, "lock", "a test").release()
    with open(tmp_path / "lock", "rb") as file:
        fcntl.flock(file, fcntl.LOCK_SH)
        threading.Timer(0.1, fcntl.flock, (file, fcntl.LOCK_UN)).start()
        lock = Lock(folder, "lock", "a test")
    assert is_held(folder, "lock")
    lock.release()


def test_a_rank_that_begins_is_not_taken_for_dead(tmp_path: Path) -> None:
    """A rank has its file before the file's lock: it died only if it had the lock, whatever it wrote last."""
    lead = FolderOutput(tmp_path).begin({}, container="tar", beside=False, resume=False, overwrite=False)
    assert isinstance(lead, FolderLead)
    look = lead.run.others(2)
    (tmp_path / JOURNAL / "rank-00001").touch()
    assert look().ranks == {}
    with lead.run.working(1) as beat:
        beat(1234567)
        beat(5)
        assert look().ranks == {1: RankState(samples=5)}
        died = (tmp_path / JOURNAL / "rank-00001").read_bytes()
    assert look().ranks == {1: RankState(samples=5, over=True)}
    (tmp_path / JOURNAL / "rank-00001").write_bytes(died)
    assert look().ranks == {1: RankState(samples=5, lost="died after 5 samples")}
    lead.close()


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_ranks_share_one_conversion(photos: Path, tmp_path: Path, container: str) -> None:
    """Each rank writes its part, all return the same manifest, and the bytes are those of one process."""
    convert(imagefolder(photos), tmp_path / "one", container=container, shard_size="2KB")
    made: dict[int, Any] = {}

    def rank(number: int) -> None:
        made[number] = convert(
            imagefolder(photos), tmp_path / "out", container=container, shard_size="2KB", world=World(number, 3)
        )

    threads = [threading.Thread(target=rank, args=(number,)) for number in (2, 1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert files(tmp_path / "out") == files(tmp_path / "one")
    assert len({made[rank].manifest.to_json() for rank in range(3)}) == 1


def test_more_ranks_than_shards(photos: Path, tmp_path: Path) -> None:
    """Ranks without shards end with the others, however late they start."""
    results: list[int] = []

    def rank(number: int) -> None:
        time.sleep(number * 0.4)
        made = convert(imagefolder(photos), tmp_path / "out", shard_size="1GB", world=World(number, 3))
        results.append(made.manifest.samples)

    threads = [threading.Thread(target=rank, args=(number,)) for number in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert results == [60] * 3
    assert not (tmp_path / "out" / ".converting").exists()


@pytest.mark.parametrize("fields", [("x=a", "x=b"), ("y=b", "x=b")])
def test_other_fields_do_not_go_on(fields: tuple[str, str], tmp_path: Path) -> None:
    """A conversion of other fields refuses to resume, even where only the values differ."""
    np.savez(tmp_path / "m.npz", a=np.arange(100), b=-np.arange(100))
    convert(numpy(tmp_path / "m.npz", fields=fields[0]), tmp_path / "out")
    with pytest.raises(ConfigError, match=r"has (some samples|fields) "):
        convert(numpy(tmp_path / "m.npz", fields=fields[1]), tmp_path / "out", resume=True)


def test_a_rank_that_fails_ends_the_others(photos: Path, tmp_path: Path) -> None:
    """When a rank fails, rank 0 reports its number, and no rank waits forever."""
    failed: dict[int, BaseException] = {}

    def rank(number: int) -> None:
        try:
            convert(Breaking(photos, at=17), tmp_path / "out", shard_size="1KB", world=World(number, 2))
        except ShardioError as error:
            failed[number] = error

    threads = [threading.Thread(target=rank, args=(number,)) for number in (1, 0)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    (one,) = [number for number, error in failed.items() if isinstance(error, BadSample)]
    assert f"rank {one}: BadSample: the disk has a scratch" in str(failed[1 - one])


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}], ids=str)
def test_what_a_dead_job_left_leads_no_rank(photos: Path, whole: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    """Ranks that start before the first one wait for it, and do not follow the plan of a job that has died."""
    out = tmp_path / "out"
    with pytest.raises(BadSample):
        convert(Breaking(photos, at=41), out, shard_size="2KB" if "resume" in options else "3KB")
    Lock(Directory(out / ".converting"), "rank-00001", "a test").release()  # its locks are gone, and its files are not
    done: list[int] = []

    def rank(number: int) -> None:
        done.append(
            convert(imagefolder(photos), out, shard_size="2KB", world=World(number, 2), **options).manifest.samples
        )

    threads = [threading.Thread(target=rank, args=(number,), daemon=True) for number in (1, 0)]
    for thread in threads:
        thread.start()
        time.sleep(0.5)
    for thread in threads:
        thread.join(30)
    assert done == [60, 60]
    assert files(out) == files(whole)


def test_the_budget_of_bad_samples(photos: Path, tmp_path: Path) -> None:
    """More bad samples than `max_bad` end the conversion, which names one of them; exactly as many do not."""
    copy = tmp_path / "src"
    subprocess.run(["cp", "-r", str(photos), str(copy)], check=True)
    for name in ("cat/00.jpg", "dog/03.jpg"):
        (copy / name).write_bytes(b"")
    with pytest.raises(TooManyBad, match=r"2 of 60 samples are bad, max_bad=0.01 allows 1, .*; one of them: .*jpg"):
        convert(imagefolder(copy), tmp_path / "out", on_error="skip", shard_size="2KB")
    result = convert(imagefolder(copy), tmp_path / "out", on_error="skip", shard_size="2KB", max_bad=2, resume=True)
    assert len(result.skipped) == 2
    assert len(shardio.open(tmp_path / "out")) == 58


def records(out: Path) -> int:
    """The number of finished shards of an unfinished conversion."""
    return len(unfinished(out, "*.done"))


@pytest.mark.slow
@pytest.mark.parametrize("container", ["tar", "hdf5"])
def test_kill_at_random_moments(tmp_path: Path, container: str) -> None:
    """A conversion that is killed and resumed again and again writes the same bytes, and leaves nothing else behind."""
    (tmp_path / "src" / "a").mkdir(parents=True)
    for number in range(400):
        (tmp_path / "src" / "a" / f"{number:03d}.jpg").write_bytes(jpeg(20, 30, seed=number))
    convert(imagefolder(tmp_path / "src"), tmp_path / "one", container=container, shard_size="2KB")
    out = tmp_path / "out"
    command = [*COMMAND, tmp_path / "src", out, "--to", container, "--shard-size", "2KB", "--resume", "--workers", "2"]
    chance = random.Random(7)
    kills = 0
    while kills < 6:
        process = subprocess.Popen(list(map(str, command)), stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL)
        before = records(out)
        # Kill it at work, not while it starts: wait for one more finished shard.
        wait_until(lambda before=before, process=process: records(out) > before or process.poll() is not None)
        time.sleep(chance.random() * 0.1)
        if process.poll() is not None:
            break
        process.send_signal(signal.SIGKILL)
        process.wait()
        kills += 1
    assert kills > 2
    done = subprocess.run(list(map(str, command)), capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files(out) == files(tmp_path / "one")
    assert verify(shardio.open(out), deep=True).problems == ()


def test_a_record_is_readable(photos: Path, tmp_path: Path) -> None:
    """The journal of an unfinished conversion describes it in JSON."""
    with pytest.raises(BadSample):
        convert(Breaking(photos, at=59), tmp_path / "out", shard_size="2KB")
    plan = json.loads((tmp_path / "out" / ".converting" / "plan.json").read_bytes())
    assert (plan["container"], plan["samples"], plan["shard_size"]) == ("tar", 60, 2000)


def test_what_is_left_of_an_older_run_cannot_write(tmp_path: Path) -> None:
    """A rank that outlives its job can write to a resumed conversion, but not to one that started over."""

    def begin(**options: bool) -> Any:
        given = {"container": "tar", "beside": False, "resume": False, "overwrite": False, **options}
        lead = FolderOutput(tmp_path).begin({"samples": 1}, **given)
        lead.close()
        return lead.run

    record = Record(WrittenShard("", 0, 0, "", np.empty(0, np.uint64), {}), (Skipped(1, "why"),))
    first = begin()
    first.record(0, record)
    assert begin(resume=True).done() == {0}
    anew = begin(overwrite=True)
    assert anew.read(0) is None
    with pytest.raises(FileNotFoundError):
        first.record(1, record)
    assert anew.done() == set()


def test_a_lock_is_exclusive(tmp_path: Path) -> None:
    """A lock is held once, within one process too."""
    first = Lock(Directory(tmp_path), "lock", "a test")
    with pytest.raises(ConfigError, match=f"a test is already running here: process {os.getpid()} on"):
        Lock(Directory(tmp_path), "lock", "a test")
    first.release()
    Lock(Directory(tmp_path), "lock", "a test").release()


@pytest.mark.slow
def test_torchrun(photos: Path, whole: Path, tmp_path: Path) -> None:
    """Under a launcher each rank converts its own part, and only rank 0 prints."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *COMMAND[1:]]
    command = [*run, str(photos), str(tmp_path / "out"), "--shard-size", "2KB", "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("60 samples in") == 1
    assert files(tmp_path / "out") == files(whole)
