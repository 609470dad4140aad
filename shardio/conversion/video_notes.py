"""Notes at a conversion's end on its videos: what was rewritten, and what encoding them anew has brought or would."""

from collections import Counter
from collections.abc import Mapping

from ..errors import Message
from ..format.fields import Field, facts_column, packets_column
from ..format.packets import VideoFacts, whole_table
from ..output.shard_writer import Encoded
from ..system.units import counted, format_size
from . import reencode_video as encoding
from .reencode_video import KEYFRAMES, VideoOptions

_STORED, _PACKETS, _KEYS, _SIDES = "videos", "videos: packets", "videos: key frames", "videos: shorter sides"
_REWRITTEN, _TURNED = "rewritten videos", "turned videos"
_CLIP = 16  # frames
_SHORTER = 256
_WORTH = 1.5
"""By how much a clip must decode less, or frames be larger, to be worth a hint."""


def count(sample: Encoded, fields: Mapping[str, Field], counts: Counter[str]) -> None:
    """Count a sample's videos that are rewritten or turned, their packets and key frames, and their shorter sides."""
    if sample.rewritten:
        counts[_REWRITTEN] += sample.rewritten
    for name, field in fields.items():
        if field.kind != "video" or not len(sample.stored[name]):  # a sample may lack its video
            continue
        facts = VideoFacts.of(sample.stored[facts_column(name)])
        table = sample.stored[packets_column(name)]
        packets = whole_table(facts, table, len(sample.stored[name]))[1]
        counts[_STORED] += 1
        counts[_PACKETS] += len(packets)
        counts[_KEYS] += int(packets.keys.sum())
        counts[_SIDES] += min(facts.height, facts.width)
        counts[_TURNED] += facts.rotation > 0


def video_notes(counts: Mapping[str, int], options: VideoOptions | None = None) -> list[str]:
    """Return notes on videos that were rewritten or encoded anew, and on those that are to be shown turned.

    With options, and if these encode nothing anew, a hint says what that would spare.
    """
    notes: list[str] = []
    if rewritten := counts.get(_REWRITTEN):
        told = "of MPEG-TS, AVI or FLV: rewritten to MP4 without encoding them anew, with the same pictures"
        notes.append(f"{counted(rewritten, 'video')} {told}")
    if turned := counts.get(_TURNED):
        told = "a display matrix turns {}, which a Loader ignores: Loader(orient=True) turns them"
        notes.append(Message(told, counted(turned, "video")))
    if made := counts.get(encoding.VIDEOS):
        told = "encoded {} anew: {} became {}, and a key frame every {:.0f} frames became one every {:.0f}{}"
        before = counts[encoding.PACKETS_BEFORE] / max(1, counts[encoding.KEYS_BEFORE])
        after = counts[_PACKETS] / max(1, counts[_KEYS])
        more = f"; {counted(counts[encoding.SILENT], 'video')} lost the sound" if counts.get(encoding.SILENT) else ""
        sizes = format_size(counts[encoding.BEFORE]), format_size(counts[encoding.AFTER])
        notes.append(Message(told, counted(made, "video"), *sizes, before, after, more))
    if options is None:
        return notes
    if options.fps is not None:
        told = "{fps}: {} frames were dropped, {} were shown again to fill up the rate"
        notes.append(Message(told, counts.get(encoding.DROPPED, 0), counts.get(encoding.DOUBLED, 0)))
    if not options.every and (stored := counts.get(_STORED)):
        notes += _hint(counts[_PACKETS] / max(1, counts[_KEYS]), counts[_SIDES] / stored)
    return notes


def _hint(every: float, side: float) -> list[str]:
    """Return a hint if videos have few key frames or large frames: means of the frames between, and of a side."""
    now, then = _CLIP + every / 2, _CLIP + KEYFRAMES / 2
    advice = ["{keyframes:" + f"{KEYFRAMES}" + "}"] if now >= _WORTH * then else []
    advice += ["{resize_shorter:" + f"{_SHORTER}" + "}"] if side >= _WORTH * _SHORTER else []
    if not advice:
        return []
    told = (
        "videos have a key frame every {:.0f} frames, a shorter side of {:.0f} pixels in the mean: a random clip of "
        f"{_CLIP} neighbouring frames decodes {{:.0f}}, where {then:.0f} would do; {' and '.join(advice)} "
        "would encode them anew, to load faster"
    )
    return [Message(told, every, side, now)]
