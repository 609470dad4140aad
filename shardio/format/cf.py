"""NetCDF's conventions: how numbers in a file become values by its attributes, such as `scale_factor` and `units`.

Decoded values are those of `xarray.decode_cf`, bit for bit, with three differences: numbers outside of a valid range
are NaN, as netCDF4-python masks them; times are seconds since 1970, float64, or in calendars without leap days the
stored numbers; and an integer scale gives float64, where xarray keeps integers, which may wrap around. The
conventions are described at https://cfconventions.org.
"""

import contextlib
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, final

import numpy as np
from numpy.typing import NDArray

from ..errors import SourceError

_PACKING = ("scale_factor", "add_offset", "_FillValue", "missing_value", "_Unsigned")
_VALID = ("valid_min", "valid_max", "valid_range")
_MEANING = ("units", "calendar", "vocabulary", "flip_pairs")
# The last two are not netCDF's: the number of tokens that a tokenizer knows, and the points that a flip exchanges.
ATTRIBUTES = ("units", "calendar", *_PACKING, *_VALID)
"""The attributes that say what numbers mean."""

SECONDS = "seconds since 1970-01-01 00:00:00"
"""The units of decoded times."""

_UNIT_NAMES = {
    "nanoseconds": "nanosecond ns",
    "microseconds": "microsecond microsec microsecs us",
    "milliseconds": "millisecond millisec millisecs msec msecs ms",
    "seconds": "second sec secs s",
    "minutes": "minute min mins",
    "hours": "hour hr hrs h",
    "days": "day d",
}
_UNITS = {name: plural for plural, others in _UNIT_NAMES.items() for name in (plural, *others.split())}
_SECONDS_IN = {"seconds": 1.0, "minutes": 60.0, "hours": 3600.0, "days": 86400.0}
_IN_A_SECOND = {"nanoseconds": 1e9, "microseconds": 1e6, "milliseconds": 1e3}
_MIXED = ("standard", "gregorian")  # calendars that are Julian before the reform
_CALENDARS = (*_MIXED, "proleptic_gregorian")  # those whose dates are seconds since 1970
_REFORM = ((1582, 10, 5), (1582, 10, 15))  # the first day that never was, and the first one after
_INT64 = 1 << 63
_SINCE = re.compile(r"(.+) since (.+)")
_DATE = re.compile(
    r"([+-]?\d{1,5})(?:-(\d{1,2})(?:-(\d{1,2}))?)?"
    r"(?:[T ]\s*(\d{1,2})(?::(\d{1,2})(?::(\d{1,2})(?:\.(\d*))?)?)?)?"
    r"\s*(?:Z|UTC|GMT|([+-])(\d{1,2}):?(\d{2})?)?",
    re.IGNORECASE,
)


@final
@dataclass(frozen=True, slots=True)
class Decoding:
    """The rule that turns the stored numbers of one variable of one file into values; made by `decoding`.

    Attributes:
        stored: the dtype of the numbers in the file, in native byte order.
        viewed: the integer dtype as which their bytes are read.
        compared: the dtype for comparing them with `fills`.
        fills: the numbers that become NaN.
        low, high: smaller and larger numbers become NaN; None for no bound.
        scaled: the dtype for scaling them.
        scale, offset: the factor, and what is added then; None for none.
        time: (factor, divisor, reference) of times, where factor or divisor is 1: seconds since 1970 are
            `number * factor / divisor + reference`; None for other values.
        ignored: a clause for each attribute that does not fit and has no effect.
    """

    stored: np.dtype[Any]
    viewed: np.dtype[Any]
    compared: np.dtype[Any]
    fills: tuple[Any, ...]
    low: Any
    high: Any
    scaled: np.dtype[Any]
    scale: Any
    offset: Any
    time: tuple[float, float, float] | None
    ignored: tuple[str, ...] = ()

    @property
    def dtype(self) -> np.dtype[Any]:
        """The dtype of decoded values, in native byte order."""
        return self.scaled if self.time is None else np.dtype(np.float64)

    @property
    def idle(self) -> bool:
        """Whether values are the stored numbers."""
        return self.scaled == self.stored and self.time is None and not (self._masks or self._packed)

    @property
    def _masks(self) -> bool:
        return bool(self.fills) or self.low is not None or self.high is not None

    @property
    def _packed(self) -> bool:
        return self.scale is not None or self.offset is not None

    def apply(self, numbers: NDArray[Any], out: NDArray[Any] | None = None) -> NDArray[Any]:
        """Decode numbers as they are stored, of either byte order.

        Args:
            numbers: the numbers, of any shape; they stay as they are unless `out` is the same array.
            out: an array of the same shape and the decoded dtype, to fill.

        Returns:
            `out`, or a new array like it.
        """
        numbers = np.asarray(numbers)
        native = numbers.astype(self.stored, copy=False)
        viewed = native if self.viewed == self.stored else native.view(self.viewed)
        out = np.empty(viewed.shape, self.dtype) if out is None else out
        hidden = np.zeros(viewed.shape, np.bool_) if self._masks else None
        with np.errstate(over="ignore", invalid="ignore"):
            if hidden is not None and self.low is not None:
                hidden |= viewed < self.low
            if hidden is not None and self.high is not None:
                hidden |= viewed > self.high
            values = out if self.compared == self.dtype else np.empty(viewed.shape, self.compared)
            if values is not viewed:
                np.copyto(values, viewed, casting="unsafe")
            if hidden is not None:
                for fill in self.fills:
                    hidden |= _equal(values, fill)
            values = values.astype(self.scaled, copy=False)
            if hidden is not None:
                values[hidden] = np.nan
            if self.scale is not None:
                _in_place(np.multiply, values, self.scale)
            if self.offset is not None:
                _in_place(np.add, values, self.offset)
            if self.time is not None:
                values = values.astype(np.float64, copy=False)
                factor, divisor, reference = self.time
                values *= factor
                values /= divisor
                values += reference
            if values is not out:
                np.copyto(out, values)
        return out


def decoding(attributes: Mapping[str, Any], dtype: np.dtype[Any]) -> Decoding:
    """Return how the numbers of a variable are decoded.

    Args:
        attributes: its attributes by name: text, NumPy's numbers, arrays [n] of them, or numbers and lists from JSON.
        dtype: the dtype of its numbers.

    Raises SourceError, in words that follow the variable's name, for attributes that no values follow from.
    """
    stored, ignored = dtype.newbyteorder("="), list[str]()
    units = attributes.get("units")
    time = _time(str(units), _calendar(attributes)) if _becomes_seconds(attributes) else None
    if _is_time(units) and time is None:
        ignored.append(
            f"its calendar is {attributes['calendar']!r}: its numbers stay {units!r}, as only times of the calendars "
            f"{', '.join(_CALENDARS)} become seconds since 1970"
        )
    if stored.kind not in "iuf":
        if time is not None or not attributes.keys().isdisjoint((*_PACKING, *_VALID)):
            raise SourceError(f"its attributes cannot be applied to {stored}")
        return Decoding(stored, stored, stored, (), None, None, stored, None, None, None)
    scale, offset = (_single(name, attributes[name]) if name in attributes else None for name in _PACKING[:2])
    fills, has_fill = _fills(attributes, stored, ignored)
    viewed, fills = _viewed(attributes, stored, fills, ignored)
    low, high = _valid(attributes, stored, viewed, ignored)
    packed, outside = scale is not None or offset is not None, low is not None or high is not None
    if time is not None and not packed and viewed == np.int64:
        fills = [*fills, np.int64(np.iinfo(np.int64).min)]  # NaT, which xarray also leaves out
    compared = viewed
    if fills and packed:
        compared = _float_for(viewed, scale, offset)
    elif fills:
        compared = np.dtype(np.int64) if time is not None and viewed.kind in "iu" else _promoted(viewed)
    scaled = compared
    if packed and (time is not None or not has_fill):
        scaled = _float_for(compared if has_fill else viewed, scale, offset)
    elif not packed and time is not None:
        scaled = np.dtype(np.float64)
    elif outside:
        scaled = _promoted(compared)
    comparable = []
    for fill in fills:
        with contextlib.suppress(OverflowError):  # no number of this dtype can be equal to it
            comparable.append(_strong(fill, compared))
    return Decoding(
        stored,
        viewed,
        compared,
        tuple(comparable),
        low,
        high,
        scaled,
        _strong(scale, scaled),
        _strong(offset, scaled),
        time,
        tuple(ignored),
    )


def stated(attributes: Mapping[str, Any], *, decoded: bool = False) -> dict[str, Any] | None:
    """Return what a field states of its values as JSON, with NaN as the string "NaN"; None if it states nothing.

    Args:
        attributes: the attributes of a variable, see `decoding`.
        decoded: whether they are applied, so that only the units are left to be stated.
    """
    units = attributes.get("units")
    if decoded:
        if _becomes_seconds(attributes) or not _is_time(units):
            return {"units": SECONDS if _is_time(units) else units} if isinstance(units, str) else None
        return {"units": units, "calendar": str(attributes["calendar"])}
    return {name: _plain(attributes[name]) for name in ATTRIBUTES if name in attributes} or None


def changes(attributes: Mapping[str, Any] | None) -> dict[str, Any]:
    """Return the stated attributes of a field that make some of its numbers differ from the values they mean."""
    given = attributes or {}
    return {n: given[n] for n in (*_PACKING, *_VALID) if n in given and not _is_idle(n, given[n])}


@final
@dataclass(frozen=True, slots=True)
class Difference:
    """An attribute that gives equal numbers of two fields different values.

    Attributes:
        name: the attribute.
        values: what each of the two states of it; None for nothing.
        decodes: whether decoded values would be alike.
    """

    name: str
    values: tuple[Any, Any]
    decodes: bool

    def between(self, one: object, other: object) -> str:
        """Return the difference in words: `units is 'K' in a.nc, and 'degC' in b.nc`."""
        mine, others = ("not stated" if value is None else repr(value) for value in self.values)
        return f"{self.name} is {mine} in {one}, and {others} in {other}"


def difference(one: Mapping[str, Any] | None, other: Mapping[str, Any] | None) -> Difference | None:
    """Return the first attribute of two fields that gives equal numbers different meanings; None if none does."""
    pair = [{n: v for n, v in (given or {}).items() if not _is_idle(n, v)} for given in (one, other)]
    for name in (*_PACKING, *_VALID, *_MEANING):
        values = pair[0].get(name), pair[1].get(name)
        if values[0] != values[1]:
            times = all(_becomes_seconds(given) for given in pair)
            return Difference(name, values, times or name not in _MEANING)
    return None


def told(attributes: Mapping[str, Any] | None) -> str:
    """Return attributes in words: `scale_factor=0.01, units='K'`."""
    return ", ".join(f"{name}={value!r}" for name, value in (attributes or {}).items())


def inherit_units(variables: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Return, for each variable that holds the bounds of times and has no units of its own, the one whose units it has.

    Args:
        variables: the attributes of each variable by its path; `bounds` names another one in the same group.
    """
    found: dict[str, str] = {}
    for path, attributes in variables.items():
        bounds = attributes.get("bounds")
        if isinstance(bounds, str) and "since" in str(attributes.get("units")):
            beside = path[: path.rfind("/") + 1] + bounds
            if beside in variables and beside != path and "units" not in variables[beside]:
                found.setdefault(beside, path)
    return found


def with_units_of(attributes: Mapping[str, Any], times: Mapping[str, Any]) -> dict[str, Any]:
    """Return the attributes of the bounds of times with the units and the calendar of these."""
    return {name: times[name] for name in ("units", "calendar") if name in times} | dict(attributes)


def to_json(attributes: Mapping[str, Any]) -> dict[str, Any]:
    """Return NumPy's attributes as JSON values, with their dtypes, on which decoded values depend."""
    found = {name: attributes[name] for name in ATTRIBUTES if name in attributes}
    return {
        name: value if isinstance(value, str) else [np.asarray(value).dtype.name, _plain(np.ravel(value))]
        for name, value in found.items()
    }


def from_json(described: Any) -> dict[str, Any]:
    """Return the attributes that `to_json` was given; ValueError or TypeError if it returned something else."""
    found: dict[str, Any] = {}
    for name, value in described.items():
        if isinstance(value, str):
            found[name] = value
            continue
        kind, numbers = value
        if np.dtype(kind).kind not in "biuf":
            raise ValueError(f"{name!r} has the dtype {kind}")
        array = np.array([float(number) if isinstance(number, str) else number for number in numbers], kind)
        found[name] = array[0] if len(array) == 1 else array
    return found


def _plain(value: Any) -> Any:
    """Return an attribute as a JSON value, with the strings "NaN", "Infinity" and "-Infinity"."""
    if isinstance(value, np.ndarray | list | tuple):
        return [_plain(part) for part in value]
    value = value.item() if isinstance(value, np.generic) else value
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"
    return value


def _is_idle(name: str, value: Any) -> bool:
    """Return whether a stated attribute changes no number."""
    if name == "calendar":
        return str(value).lower() in _MIXED
    idle = {"scale_factor": 1, "add_offset": 0, "_FillValue": "NaN", "missing_value": "NaN", "_Unsigned": "false"}
    return bool(name in idle and value == idle[name])


def _is_time(units: Any) -> bool:
    return isinstance(units, str) and "since" in units


def _calendar(attributes: Mapping[str, Any]) -> str:
    return str(attributes.get("calendar", "standard")).lower()


def _becomes_seconds(attributes: Mapping[str, Any]) -> bool:
    """Return whether attributes are those of times in a calendar with leap days."""
    return _is_time(attributes.get("units")) and _calendar(attributes) in _CALENDARS


def _time(units: str, calendar: str) -> tuple[float, float, float]:
    """Return how times in some units become seconds since 1970; SourceError if they cannot."""
    found = _SINCE.match(units)
    name = _UNITS.get(found[1].strip().lower()) if found else None
    if found is None or name is None:
        raise SourceError(f"its units are {units!r}: times are in {', '.join(_UNIT_NAMES)} since a date")
    return _SECONDS_IN.get(name, 1.0), _IN_A_SECOND.get(name, 1.0), _since_1970(found[2].strip(), units, calendar)


def _since_1970(text: str, units: str, calendar: str) -> float:
    parts = _DATE.fullmatch(text)
    if parts is None:
        raise SourceError(f"its units are {units!r}: {text!r} is no date such as 2000-01-01 00:00:00")
    year, month, day, hour, minute, second = (int(parts[i] or usual) for i, usual in enumerate((1, 1, 1, 0, 0, 0), 1))
    mixed = calendar in _MIXED
    if not (_is_day(year, month, day, mixed=mixed) and hour < 24 and minute < 60 and second < 60):
        raise SourceError(f"its units are {units!r}: there is no such date in the calendar {calendar}")
    zone = (int(parts[9] or 0) * 3600 + int(parts[10] or 0) * 60) * (-1 if parts[8] == "-" else 1)
    whole = _days(year, month, day, mixed=mixed) * 86400 + hour * 3600 + minute * 60 + second - zone
    return whole + float(f"0.{parts[7] or 0}")


def _is_day(year: int, month: int, day: int, *, mixed: bool) -> bool:
    if not 1 <= month <= 12 or (mixed and (year < 1 or _REFORM[0] <= (year, month, day) < _REFORM[1])):
        return False
    after = (year + month // 12, month % 12 + 1, 1)
    first = _days(year, month, 1, mixed=mixed)
    length = _days(*after, mixed=mixed) - first if (year, month) != (1582, 10) or not mixed else 31
    return 1 <= day <= length


def _days(year: int, month: int, day: int, *, mixed: bool) -> int:
    """Return the days from 1970-01-01 to a date, with `mixed` a Julian one before the reform."""
    # https://howardhinnant.github.io/date_algorithms.html: years begin in March.
    shifted = year - (month <= 2)
    days = 365 * shifted + shifted // 4 + (153 * ((month + 9) % 12) + 2) // 5 + day - 1
    if mixed and (year, month, day) < _REFORM[1]:
        return days - 719470
    return days - shifted // 100 + shifted // 400 - 719468


def _fills(attributes: Mapping[str, Any], stored: np.dtype[Any], ignored: list[str]) -> tuple[list[Any], bool]:
    """Return the numbers that stand for no value, and whether attributes state any, be it NaN."""
    fills, has_fill = list[Any](), False
    for name in ("missing_value", "_FillValue"):
        if name not in attributes:
            continue
        numbers = [number for number in _numbers(name, attributes[name]) if not math.isnan(number)]
        if not numbers and stored.kind in "iu":
            ignored.append(f"{name}={_plain(attributes[name])!r} is no {stored} and has no effect")
            continue
        fills, has_fill = [*fills, *numbers], True
    return fills, has_fill


def _viewed(
    attributes: Mapping[str, Any], stored: np.dtype[Any], fills: list[Any], ignored: list[str]
) -> tuple[np.dtype[Any], list[Any]]:
    """Return the dtype that `_Unsigned` makes of integers, and the fill values as numbers of that dtype."""
    unsigned, fill = attributes.get("_Unsigned"), attributes.get("_FillValue")
    if unsigned is not None and stored.kind == "f":
        ignored.append(f"_Unsigned={unsigned!r} is for integers and has no effect on {stored}")
    if (stored.kind, unsigned) not in (("i", "true"), ("u", "false")):
        return stored, fills
    viewed = np.dtype(f"{'u' if stored.kind == 'i' else 'i'}{stored.itemsize}")
    if fill is None or math.isnan(number := _single("_FillValue", fill)):
        return viewed, fills
    try:
        other = np.array(number, stored).view(viewed)[()]
    except OverflowError as error:
        raise SourceError(f"its _FillValue={number} is no {stored}") from error
    return viewed, [*(f for f in fills if f != number), other.item() if viewed.kind == "u" else other]


def _valid(
    attributes: Mapping[str, Any], stored: np.dtype[Any], viewed: np.dtype[Any], ignored: list[str]
) -> tuple[Any, Any]:
    """Return the smallest and the largest valid number; None for a bound that there is not, or that all fulfil."""
    fitting: dict[str, NDArray[Any]] = {}
    for name in _VALID:
        if name in attributes:
            bounds = _fitting(attributes[name], stored)
            if bounds is None or len(bounds) != (2 if name == "valid_range" else 1):
                ignored.append(f"{name}={_plain(attributes[name])!r} does not fit {stored} and has no effect")
            else:
                fitting[name] = bounds.view(viewed)
    if "valid_range" in fitting:
        low, high = fitting["valid_range"]
    else:
        low, high = (fitting[name][0] if name in fitting else None for name in ("valid_min", "valid_max"))
    if viewed.kind in "iu":
        limits = np.iinfo(viewed)
        return None if low == limits.min else low, None if high == limits.max else high
    return low, high


def _fitting(value: Any, dtype: np.dtype[Any]) -> NDArray[Any] | None:
    """Return numbers as an array [n] of `dtype`; None if that changes one, as netCDF4-python decides it."""
    try:
        given = np.ravel(np.array(value))
        with np.errstate(invalid="ignore", over="ignore"):
            cast = given.astype(dtype)
            same = given.dtype.kind in "biuf" and bool(((given == cast) | ((given != given) & (cast != cast))).all())
    except (TypeError, ValueError, OverflowError):
        return None
    return cast if same else None


def _numbers(name: str, value: Any) -> Sequence[Any]:
    """Return the numbers of an attribute, with their own types; SourceError if it has others."""
    parts = list(value) if isinstance(value, np.ndarray | list | tuple) else [value]
    for part in parts:
        number = isinstance(part, int | float | np.integer | np.floating) and not isinstance(part, bool)
        if not number or (isinstance(part, int) and not -_INT64 <= part < 2 * _INT64):
            raise SourceError(f"its {name}={str(_plain(value))[:80]!r} is no number")
    return parts


def _single(name: str, value: Any) -> Any:
    numbers = _numbers(name, value)
    if len(numbers) != 1:
        raise SourceError(f"its {name}={_plain(value)!r} must be one number, it has {len(numbers)}")
    return numbers[0]


def _float_for(dtype: np.dtype[Any], scale: Any, offset: Any) -> np.dtype[Any]:
    """Return the dtype for scaling packed numbers, as xarray chooses it."""
    given = [np.dtype(type(number)) for number in (scale, offset) if number is not None]
    if len(given) == 2 and given[0] == given[1] and given[0] in (np.float32, np.float64):
        return np.dtype(np.float64) if dtype.itemsize == 4 and dtype.kind in "iu" else given[0]
    if offset is not None or given[0].kind != "f":
        return np.dtype(np.float64)
    return given[0]


def _promoted(dtype: np.dtype[Any]) -> np.dtype[Any]:
    """Return the dtype that holds numbers and NaN, as xarray chooses it."""
    if dtype.kind == "f":
        return dtype
    return np.dtype(np.float32 if dtype.itemsize <= 2 else np.float64)


def _strong(number: Any, dtype: np.dtype[Any]) -> Any:
    """Return a number with a type of its own: one of Python takes that of the numbers it meets, as in NumPy 2."""
    return number if number is None or isinstance(number, np.generic) else dtype.type(number)


def _equal(values: NDArray[Any], number: Any) -> NDArray[np.bool_]:
    """Return where values equal a number, in the dtype that holds both: NumPy 1 would round the number to theirs."""
    if values.dtype.kind in "iu" and number.dtype.kind in "iu":
        return np.asarray(values == number)
    kind = np.result_type(values.dtype, number.dtype)
    return np.asarray(np.equal(values, number, signature=f"{kind.char}{kind.char}->?"))


def _in_place(operation: Any, values: NDArray[Any], number: Any) -> None:
    """Compute in the dtype that holds both, and round to that of `values`, as NumPy 2 does."""
    operation(values, number, out=values, casting="same_kind", dtype=np.result_type(values.dtype, number.dtype))
