"""Conversions that are interrupted, resumed, refused, and shared by ranks, in a folder and in a store."""

import fcntl
import random
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from _builders import jpeg, write_files
from _datasets import files
from _places import SIZE, FolderPlace, Photos, StorePlace, by_ranks, changed, cut_off, kill_at_work, scratch

import shardio
from shardio.care.verify import verify
from shardio.conversion.api import convert
from shardio.errors import BadSample, ConfigError, NotADataset, ShardioError, TooManyBad
from shardio.format import manifest
from shardio.format.manifest import Manifest
from shardio.order.world import World
from shardio.output import folder
from shardio.output.base import RankState
from shardio.output.folder import FolderLead, FolderOutput
from shardio.output.locks import Lock, is_held
from shardio.output.records import JOURNAL, Record, Skipped
from shardio.output.shard_writer import WrittenShard
from shardio.system.directory import Directory
from shardio_converters.imagefolder import imagefolder
from shardio_converters.numpy import numpy

COMMAND = [sys.executable, "-m", "shardio", "convert", "imagefolder"]
Place = FolderPlace | StorePlace


def interrupted(place: Place, photos: Path, at: int = 41, **options: Any) -> None:
    """Convert until a sample is bad."""
    with pytest.raises(BadSample, match="scratch"):
        place.convert(Photos(photos, at, scratch), **options)


def unfinished(place: Place) -> set[str]:
    """The files of unfinished conversions."""
    return {name for name in place.all() if name.startswith(("RUN", ".converting"))}


def test_resume_keeps_the_shards_that_stand(photo_folder: Path, whole: dict[str, bytes], place: Place) -> None:
    """Resuming neither reads nor writes finished shards again, and gives the files of an uninterrupted conversion."""
    interrupted(place, photo_folder)
    assert manifest.FILE_NAME not in place.all()
    source = Photos(photo_folder)
    place.convert(source, resume=True)
    assert 41 in source.read
    assert source.early() < 8
    assert place.shards() == whole
    assert not unfinished(place)


def test_resume_writes_a_damaged_shard_anew(photo_folder: Path, whole: dict[str, bytes], place: Place) -> None:
    """Resuming rewrites a shard that is missing, or does not match its record."""
    interrupted(place, photo_folder, 58)
    place.write("RUN/shard-000001.tar", whole["shard-000001.tar"][:-7] + b"damage")
    place.write("RUN/shard-000003.tar", None)
    place.convert(Photos(photo_folder), resume=True)
    assert place.shards() == whole


def test_a_damaged_record_is_refused(photo_folder: Path, whole: dict[str, bytes], place: Place) -> None:
    """Resuming finds a changed byte anywhere in a record, even where no shard contradicts it, and names the shard."""
    interrupted(place, photo_folder)
    name = "RUN/000000.done"
    record = place.all()[name]
    other = changed(record, image_shapes={"image": [1 << 32, 16]})
    for data in (record[:16] + other[16:], bytes([record[0] ^ 1]) + record[1:], record[:-1], record[:9], b""):
        place.write(name, data)
        with pytest.raises(ShardioError, match=r"shard 0 is damaged: it does not begin with its checksum; start over"):
            place.convert(imagefolder(photo_folder), resume=True)
    place.write(name, record)
    place.convert(imagefolder(photo_folder), resume=True)
    assert place.shards() == whole


def test_a_damaged_plan_is_refused(photo_folder: Path, place: Place) -> None:
    """Resuming refuses a plan that is damaged, on the first rank and on others, and names it; overwrite starts over."""
    interrupted(place, photo_folder)
    for damage in (b"", b"[]", b"7", b"{", b'{"run": [', b"[" * 100_000, b"\xff", b"null"):
        place.write(".converting/plan.json", damage)
        for world in (World(0, 1), World(1, 2)) if isinstance(place, FolderPlace) else (World(0, 1),):
            with pytest.raises(ShardioError, match=r"plan.json is damaged.*start over with overwrite"):
                place.convert(imagefolder(photo_folder), resume=True, world=world)
    place.convert(imagefolder(photo_folder), overwrite=True)
    assert place.manifest().samples == 60


def test_skipping_goes_on_where_an_error_ended(photo_folder: Path, place: Place) -> None:
    """A conversion that ended at a bad sample resumes with `skip`, but not from `skip` back to `raise`."""
    interrupted(place, photo_folder)
    broken = Photos(photo_folder, 41, scratch)
    with pytest.raises(TooManyBad) as error:
        place.convert(broken, on_error="skip", max_bad=0, resume=True)
    assert [bad.number for bad in error.value.skipped] == [41]
    assert broken.early() < 8
    with pytest.raises(BadSample, match="scratch"):
        place.convert(Photos(photo_folder), resume=True)
    made = place.convert(Photos(photo_folder), on_error="skip", max_bad=1, resume=True)
    assert ([bad.number for bad in made.skipped], made.manifest.samples) == ([41], 59)


@pytest.mark.parametrize(
    ("options", "named"),
    [
        ({"shard_size": "3KB"}, "shard_size 4000, not 3000"),
        ({"container": "lmdb"}, "container 'tar', not 'lmdb'"),
        ({"numbers": np.arange(59)}, "samples 60, not 59"),
    ],
    ids=["size", "container", "samples"],
)
def test_another_conversion_does_not_go_on_with_it(
    photo_folder: Path, place: Place, options: dict[str, Any], named: str
) -> None:
    """A conversion with other options refuses to resume one, unfinished or finished, and names what differs."""
    source = imagefolder(photo_folder)
    interrupted(place, photo_folder, 58)
    with pytest.raises(ConfigError, match=f"the unfinished conversion has {'.*' if 'numbers' in options else named}"):
        place.convert(source, resume=True, **options)
    with pytest.raises(ConfigError, match=r"resume continues .*, overwrite starts"):
        place.convert(source)
    place.convert(source, overwrite=True)
    if isinstance(place, StorePlace):
        shardio.clean(place.out, everything=True)  # the unfinished one stands beside it
    with pytest.raises(ConfigError, match="overwrite replaces"):
        place.convert(source)
    with pytest.raises(ConfigError, match=r"the existing dataset has .*: give the same source and options"):
        place.convert(source, resume=True, **options)


def test_resume_of_what_is_whole_does_nothing(photo_folder: Path, whole: dict[str, bytes], place: Place) -> None:
    """`resume` begins a conversion that does not exist, and leaves a finished one alone."""
    place.convert(imagefolder(photo_folder), resume=True)
    assert place.shards() == whole
    before, source = place.all(), Photos(photo_folder)
    place.convert(source, resume=True)
    assert place.all() == before
    assert len(source.read) == 9  # eight for the fingerprint of the source, one for the hint on photos


def test_an_old_dataset_stays_until_the_new_one_is_whole(photo_folder: Path, place: Place) -> None:
    """A conversion that overwrites a dataset keeps it until all shards are finished, and can be resumed."""
    place.convert(imagefolder(photo_folder), shard_size="9KB")
    old, before = place.objects(), place.manifest()

    def stands() -> None:
        assert old.items() <= place.objects().items()
        scratch()

    with pytest.raises(BadSample, match="scratch"):
        place.convert(Photos(photo_folder, 58, stands), overwrite=True)
    assert place.manifest().to_json() == before.to_json()
    source = Photos(photo_folder)
    place.convert(source, overwrite=isinstance(place, FolderPlace), resume=True)
    assert source.early() < 8
    assert len(place.manifest().shards) == 10
    if isinstance(place, StorePlace):  # who reads the old one goes on
        assert {*old} <= {*place.objects()}


def test_a_failure_before_the_first_shard_leaves_nothing(photo_folder: Path, place: Place) -> None:
    """A conversion that ends before a shard is finished leaves no file, nor does one with invalid options."""
    interrupted(place, photo_folder, 1)
    for options in ({"container": "hdf5", "compression": "lz4"}, {"compression": "gzip"}):
        with pytest.raises(ConfigError):
            place.convert(imagefolder(photo_folder), **options)
    assert place.all() == {}
    assert isinstance(place, StorePlace) or not place.out.exists()


@pytest.mark.parametrize("fields", [("x=a", "x=b"), ("y=b", "x=b")])
def test_other_fields_do_not_go_on(fields: tuple[str, str], place: Place, tmp_path: Path) -> None:
    """A conversion of other fields refuses to resume, even where only the values differ."""
    np.savez(tmp_path / "m.npz", a=np.arange(100), b=-np.arange(100))
    place.convert(numpy(tmp_path / "m.npz", fields=fields[0]))
    with pytest.raises(ConfigError, match=r"has (some samples|fields) "):
        place.convert(numpy(tmp_path / "m.npz", fields=fields[1]), resume=True)


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_ranks_share_one_conversion(photo_folder: Path, place: Place, tmp_path: Path, container: str) -> None:
    """Each rank writes its part, all return the same manifest, and the bytes are those of one process."""
    one = FolderPlace(tmp_path / "one")
    one.convert(imagefolder(photo_folder), container=container)
    made = by_ranks(place, lambda rank: imagefolder(photo_folder), container=container)
    assert len({found.to_json() for found in made if isinstance(found, Manifest)}) == 1, made
    assert place.shards() == one.shards()
    again = by_ranks(place, lambda rank: imagefolder(photo_folder), container=container, resume=True)
    assert [type(found) for found in again] == [Manifest] * 3
    few = by_ranks(place, lambda rank: imagefolder(photo_folder), shard_size="1GB", overwrite=True)
    assert [getattr(found, "samples", found) for found in few] == [60] * 3  # ranks without shards end with the others
    assert not unfinished(place)


@pytest.mark.usefixtures("quick")
def test_a_rank_that_fails_ends_the_others(photo_folder: Path, whole: dict[str, bytes], place: Place) -> None:
    """They say which one it was. A job of another size resumes, and takes no run for its own that nobody leads."""
    made = by_ranks(place, lambda rank: Photos(photo_folder, 41, scratch))
    failed = next(rank for rank in range(3) if isinstance(made[rank], BadSample))
    told = [str(error) for error in made]
    assert all(rank == failed or f"rank {failed}: BadSample: the disk has a scratch" in told[rank] for rank in range(3))
    assert unfinished(place)
    again = by_ranks(place, lambda rank: imagefolder(photo_folder), size=2, resume=True)
    assert [type(found) for found in again] == [Manifest] * 2, again
    assert place.shards() == whole
    assert not unfinished(place)


@pytest.mark.usefixtures("quick")
def test_ranks_that_differ_or_never_come(photo_folder: Path, place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    """A rank with other options, and one that never comes, end the conversion, and are named."""
    sizes = {1: "8KB"}
    made = by_ranks(place, lambda rank: imagefolder(photo_folder), shard_size=lambda rank: sizes.get(rank, SIZE))
    assert isinstance(made[1], ConfigError)
    assert "has shard_size 4000, not 8000" in str(made[1])
    assert "rank 1: ConfigError" in str(made[0])
    monkeypatch.setattr("shardio.conversion.ranks.BEGIN_SECONDS", 1.0)
    made = by_ranks(place, lambda rank: imagefolder(photo_folder), absent=(2,), overwrite=True)
    assert "rank 2 of 3 has not begun for 1 s" in str(made[0])
    assert "rank 0: ShardioError: rank 2" in str(made[1])


def test_splits_are_datasets_of_their_own(photo_folder: Path, place: Place) -> None:
    """Each split has a place, a manifest and a journal below the output."""
    result = place.convert(imagefolder(photo_folder), split="a=0.5,b=0.5")
    assert [str(result.datasets[name].path) for name in "ab"] == [f"{place.out}/a", f"{place.out}/b"]
    assert {name.split("/")[0] for name in place.all()} == {"a", "b"}


# What a folder alone has: names that lead out of it, renames, and locks.


@pytest.mark.parametrize("where", range(4))
def test_a_publication_that_was_cut_off_goes_on(
    photo_folder: Path, whole: dict[str, bytes], tmp_path: Path, where: int
) -> None:
    """Resuming completes a publication that stopped after any of its renames, also over a dataset."""
    out = tmp_path / "out"
    convert(imagefolder(photo_folder), out, shard_size="5KB")  # an older dataset, with other shards of the same names
    with cut_off(out, where * 5 + 2, KeyboardInterrupt()), pytest.raises(KeyboardInterrupt):
        convert(imagefolder(photo_folder), out, shard_size=SIZE, overwrite=True)
    with pytest.raises(NotADataset):
        shardio.open(out)
    convert(imagefolder(photo_folder), out, shard_size=SIZE, resume=True)
    assert FolderPlace(tmp_path).shards() == whole


def test_another_source_does_not_go_on_with_it(photo_folder: Path, tmp_path: Path) -> None:
    """A source that changed in between is refused."""
    copy = tmp_path / "src"
    subprocess.run(["cp", "-r", str(photo_folder), str(copy)], check=True)
    with pytest.raises(BadSample):
        convert(Photos(copy, 58, scratch), tmp_path / "out", shard_size=SIZE)
    (copy / "cat" / "00.jpg").write_bytes(jpeg(60, 60))
    with pytest.raises(ConfigError, match="sizes and order"):
        convert(imagefolder(copy), tmp_path / "out", shard_size=SIZE, resume=True)


def test_two_conversions_refuse_each_other(photo_folder: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """A second conversion fails and names the process that holds the lock; the lock ends with that process."""
    holder = (
        "import sys, time; from shardio.output.locks import Lock\n"
        "from shardio.system.directory import Directory\n"
        "lock = Lock(Directory(sys.argv[1]), 'lock', 'a test'); print('held', flush=True); time.sleep(600)"
    )
    out = tmp_path / "out"
    (out / ".converting").mkdir(parents=True)
    command = [sys.executable, "-c", holder, str(out / ".converting")]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    assert process.stdout.readline() == "held\n"
    for options in ({"resume": True}, {"overwrite": True}):
        with pytest.raises(ConfigError, match=f"another conversion is already running here: process {process.pid} on "):
            convert(imagefolder(photo_folder), out, shard_size=SIZE, **options)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    convert(imagefolder(photo_folder), out, shard_size=SIZE, resume=True)
    assert FolderPlace(tmp_path).shards() == whole


@pytest.mark.parametrize("option", ["resume", "overwrite"])
def test_a_journal_that_clean_removes_meanwhile(
    photo_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str
) -> None:
    """A conversion that finds an old journal at the moment when `clean` removes it begins with one of its own."""
    interrupted(FolderPlace(tmp_path), photo_folder)
    claim = folder._claim

    def claimed(*args: Any, **options: Any) -> Directory:
        journal = claim(*args, **options)
        monkeypatch.setattr(folder, "_claim", claim)
        shardio.clean(tmp_path / "out", everything=True)
        return journal

    monkeypatch.setattr(folder, "_claim", claimed)
    assert convert(imagefolder(photo_folder), tmp_path / "out", **{option: True}).manifest.samples == 60


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
    assert look()[1] == {}
    with lead.run.working(1) as beat:
        beat(1234567)
        beat(5)
        assert look()[1] == {1: RankState(samples=5)}
        died = (tmp_path / JOURNAL / "rank-00001").read_bytes()
    assert look()[1] == {1: RankState(samples=5, over=True)}
    (tmp_path / JOURNAL / "rank-00001").write_bytes(died)
    assert look()[1] == {1: RankState(samples=5, lost="died after 5 samples")}
    lead.close()


@pytest.mark.parametrize("options", [{"resume": True}, {"overwrite": True}], ids=str)
def test_what_a_dead_job_left_leads_no_rank(
    photo_folder: Path, whole: dict[str, bytes], tmp_path: Path, options: dict[str, Any]
) -> None:
    """Ranks that start before the first one wait for it, and do not follow the plan of a job that has died."""
    out = tmp_path / "out"
    with pytest.raises(BadSample):
        convert(Photos(photo_folder, 41, scratch), out, shard_size=SIZE if "resume" in options else "3KB")
    Lock(Directory(out / ".converting"), "rank-00001", "a test").release()  # its locks are gone, and its files are not
    made = by_ranks(FolderPlace(tmp_path), lambda rank: imagefolder(photo_folder), size=2, **options)
    assert [getattr(found, "samples", found) for found in made] == [60, 60]
    assert FolderPlace(tmp_path).shards() == whole


@pytest.mark.long
@pytest.mark.slow
@pytest.mark.parametrize("container", ["tar", "hdf5"])
def test_kill_at_random_moments(tmp_path: Path, container: str) -> None:
    """A conversion that is killed and resumed again and again writes the same bytes, and leaves nothing else behind."""
    write_files(tmp_path / "src", {f"a/{number:03d}.jpg": jpeg(20, 30, seed=number) for number in range(400)})
    convert(imagefolder(tmp_path / "src"), tmp_path / "one", container=container, shard_size=SIZE)
    out = tmp_path / "out"
    given = [tmp_path / "src", out, "--to", container, "--shard-size", SIZE, "--resume", "--workers", "2"]
    command, chance, kills = [*COMMAND, *map(str, given)], random.Random(7), 0
    while kills < 4 and kill_at_work(command, out, chance):
        kills += 1
    assert kills > 1
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert files(out) == files(tmp_path / "one")
    assert verify(shardio.open(out), deep=True).problems == ()


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


@pytest.mark.slow
def test_torchrun(photo_folder: Path, whole: dict[str, bytes], tmp_path: Path) -> None:
    """Under a launcher each rank converts its own part, and only rank 0 prints."""
    run = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *COMMAND[1:]]
    command = [*run, str(photo_folder), str(tmp_path / "out"), "--shard-size", SIZE, "--workers", "1"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    assert done.stdout.count("60 samples in") == 1
    assert FolderPlace(tmp_path).shards() == whole
