"""Sounds of class folders and lists: decoded once to int16 arrays at one rate, whatever their format."""

import io
import wave
from pathlib import Path

import numpy as np
import pytest
from _builders import write_files
from _media import encoded_sound, wav
from numpy.typing import NDArray

import shardio
from shardio.errors import BadSample, ConfigError, SourceError
from shardio.source import Field
from shardio_converters.audiofolder import audiofolder
from shardio_converters.filelist import filelist

FORMATS = {"flac": ("flac", "flac"), "opus": ("ogg", "libopus"), "mp3": ("mp3", "libmp3lame"), "m4a": ("ipod", "aac")}


def samples(data: bytes) -> NDArray[np.int16]:
    """The samples of a WAV file, [n, channels]."""
    with wave.open(io.BytesIO(data)) as file:
        return np.frombuffer(file.readframes(file.getnframes()), np.int16).reshape(-1, file.getnchannels())


def test_class_folders(tmp_path: Path) -> None:
    """Samples are those of the files, bit for bit where nothing is resampled; the rate is an attribute."""
    files = {"no/a.wav": wav(0.5), "yes/b.WAV": wav(0.25, pitch=880), "yes/c.wav": wav(0)}
    write_files(tmp_path / "words", files | {"yes/notes.txt": b""})
    source = audiofolder(tmp_path / "words", rate=16000)
    assert source.fields["audio"] == Field("array", "int16", (None,), attributes={"rate": 16000})
    assert dict(source.metadata) == {"source": "audiofolder", "classes": ["no", "yes"]}
    assert source.remarks[0].startswith("left out 1 file of other kinds")
    made = shardio.convert(source, tmp_path / "out", workers=2, tell=str)
    assert made.manifest.conversion["sounds"].startswith("libavcodec ")
    dataset = shardio.open(tmp_path / "out")
    assert dataset.fields["audio"].attributes == {"rate": 16000}
    assert [dataset[n]["label"] for n in range(3)] == [0, 1, 1]
    for number, data in enumerate(files.values()):
        np.testing.assert_array_equal(dataset[number]["audio"], samples(data)[:, 0])


def test_channels(tmp_path: Path) -> None:
    """All channels are kept, or mixed with equal weights; a file with other channels is a bad sample."""
    write_files(tmp_path, {"a.wav": wav(0.1, channels=2), "b.wav": wav(0.1)})
    source = audiofolder(tmp_path)
    assert source.fields["audio"].shape == (None, 2)
    assert any("16000 samples per second, as the first file has" in str(hint) for hint in source.hints)
    np.testing.assert_array_equal(source[0]["audio"], samples(wav(0.1, channels=2)))
    with pytest.raises(BadSample, match=r"b\.wav: it has 1 channels, others have 2"):
        source[1]
    mixed = audiofolder(tmp_path, mono=True)
    assert mixed.fields["audio"].shape == (None,)
    mean = samples(wav(0.1, channels=2)).mean(axis=1)
    assert np.abs(mixed[0]["audio"] - mean).max() <= 1
    assert len(mixed[1]["audio"]) == 1600


@pytest.mark.parametrize("suffix", FORMATS)
def test_every_format_is_resampled(suffix: str, tmp_path: Path) -> None:
    """A tone keeps its pitch and its length, as far as its codec does, at another rate."""
    write_files(tmp_path, {f"a.{suffix}": encoded_sound(*FORMATS[suffix], seconds=0.5)})
    source = audiofolder(tmp_path, rate=8000)
    found = source[0]["audio"]
    assert len(found) == pytest.approx(4000, abs=300)
    spectrum = np.abs(np.fft.rfft(found[1000:3000]))
    assert np.argmax(spectrum) * 8000 / 2000 == 440
    assert source.sizes()[0] == pytest.approx(found.nbytes, abs=1)


def test_lists(tmp_path: Path) -> None:
    """With a rate, files of a list that are sounds become the field audio; without it a hint names it."""
    rows = b"path,label\na.wav,no\nb.wav,yes\n"
    write_files(tmp_path, {"a.wav": wav(0.1), "b.wav": wav(0.2), "list.csv": rows})
    plain = filelist(tmp_path / "list.csv")
    assert plain.fields["bytes"] == Field("bytes")
    (hint,) = plain.hints
    assert hint.startswith("a.wav and other files are taken as bytes, field 'bytes': rate=16000 decodes sounds")
    write_files(tmp_path, {"other.csv": b"path\nlist.csv\n"})
    with pytest.raises(ConfigError, match="rate decodes sounds, and the files of this list are none"):
        filelist(tmp_path / "other.csv", rate=8000)
    source = filelist(tmp_path / "list.csv", rate=8000, classes="auto")
    assert {name: field.kind for name, field in source.fields.items()} == {
        "audio": "array",
        "label": "scalar",
        "key": "text",
    }
    assert [len(source[n]["audio"]) for n in range(2)] == [800, 1600]
    two = filelist(tmp_path / "list.csv", rate=8000, path="speech=path", mono=True)
    assert two.fields["speech"].attributes == {"rate": 8000, "mono": True}
    with pytest.raises(ConfigError, match="mono"):
        filelist(tmp_path / "list.csv", mono=True)


def test_what_cannot_be_decoded(tmp_path: Path) -> None:
    """It is a bad sample, by name; a source where nothing can be is refused, and so is a rate that is none."""
    write_files(
        tmp_path / "words",
        {
            "a/0.wav": b"RIFF" + bytes(4) + b"WAVE" + bytes(52),
            "a/1.wav": wav(0.1),
            "a/2.mp3": b"text only",
            "a/3.mp3": b"",
        },
    )
    source = audiofolder(tmp_path / "words", rate=8000)
    for number, told in (
        (0, r"0\.wav: libav cannot read it as 'wav', it may be cut short or damaged: Invalid data[a-z ]*$"),
        (2, r"2\.mp3: it is no WAV, FLAC"),
        (3, r"3\.mp3: it is an empty file"),
    ):
        with pytest.raises(BadSample, match=told):
            source[number]
    made = shardio.convert(source, tmp_path / "out", on_error="skip", max_bad=3)
    assert made.manifest.samples == 1
    with pytest.raises(ConfigError, match="rate"):
        audiofolder(tmp_path / "words", rate=0)
    (tmp_path / "words" / "a" / "1.wav").unlink()
    with pytest.raises(SourceError, match="no sound can be decoded"):
        audiofolder(tmp_path / "words", rate=8000)


@pytest.mark.parametrize("container", ["tar", "hdf5", "lmdb"])
def test_windows_of_seconds(container: str, tmp_path: Path) -> None:
    """RandomWindow(seconds=s) is RandomWindow of as many entries as the rate says, and draws the same."""
    write_files(tmp_path / "in", {f"{number}.wav": wav(0.5, pitch=300 + number) for number in range(6)})
    shardio.convert(tmp_path / "in", tmp_path / "out", converter="audiofolder", container=container)
    dataset = shardio.open(tmp_path / "out")
    batches = [
        list(shardio.Loader(dataset, 3, fields=("audio",), transforms={"audio": [window]}, seed=1))
        for window in (shardio.RandomWindow(seconds=0.1), shardio.RandomWindow(1600))
    ]
    for one, other in zip(*batches, strict=True):
        assert one["audio"].shape == (3, 1600)
        assert one["audio"].equal(other["audio"])
    other = shardio.from_samples([{"x": np.zeros(9, np.int16)}], {"x": ("int16", (None,))})
    with pytest.raises(ConfigError, match="attribute 'rate'"):
        shardio.Loader(other, 1, transforms={"x": [shardio.RandomWindow(seconds=1.0)]})
    for wrong in ({}, {"n": 5, "seconds": 1.0}, {"seconds": 0}, {"seconds": "1"}):
        with pytest.raises(ConfigError):
            shardio.RandomWindow(**wrong)
