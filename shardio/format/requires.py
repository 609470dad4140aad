"""The list `requires` of a format: the features that a reader must know, so that formats can grow.

A reader that doesn't know one of them must not read on: it could take other values for the right ones.
"""

from ..errors import DatasetError

GEOMETRY = "geometry"
"""Fields that lie on an image, and those that are per instance."""

_KNOWN = frozenset({GEOMETRY})


def check_requires(requires: object, place: object, error: type[DatasetError] = DatasetError) -> None:
    """Check that this version of shardio knows all features that a manifest, an index or a saved view requires.

    Args:
        requires: the value of `requires`, a list of names.
        place: where it stands, for the message.
        error: what is raised for a name that is unknown, or for what is no list of names.
    """
    if not isinstance(requires, list) or not all(isinstance(name, str) for name in requires):
        raise error(f"{place}: requires must be a list of strings, got {requires!r:.100}")
    if unknown := sorted({*requires} - _KNOWN):
        names = ", ".join(map(repr, unknown))
        raise error(f"{place}: needs {names:.200}, which this version of shardio doesn't know: install a newer one")
