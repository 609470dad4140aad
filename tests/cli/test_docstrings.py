"""The help of `shardio convert SOURCE` comes from the docstring of the source's converter."""

from typing import Any

from shardio.cli._options import read


def converter(src: str, *, field: str = "image", limit: int | None = None) -> Any:
    """Rows of a table.

    The first row holds the names.

    A second paragraph.

    Args:
        src: the table: a file
            or a folder
            of files.
        field (str): name of the column; `a: b` is
            text, too.
        limit: the most rows to take.

    Example:
        shardio convert table rows.csv data/rows
        shardio convert table rows.csv data/rows --field photo

    Raises:
        SourceError: `src` cannot be read.
    """


def test_the_parts_of_a_docstring_are_told_apart() -> None:
    """Entries of several lines are joined, examples are one command per line, and Raises is not shown."""
    parts = read(converter)
    assert parts.summary == "Rows of a table."
    assert parts.text == "The first row holds the names.\n\nA second paragraph."
    assert parts.arguments == {
        "src": "The table: a file or a folder of files.",
        "field": "Name of the column; `a: b` is text, too.",
        "limit": "The most rows to take.",
    }
    assert parts.examples == (
        "shardio convert table rows.csv data/rows",
        "shardio convert table rows.csv data/rows --field photo",
    )


def test_a_docstring_that_does_not_parse_gives_its_first_line() -> None:
    """The command of a converter with a malformed or missing docstring works all the same."""

    def malformed(src: str) -> Any:
        """Rows of a table.

        Args:
            the source without a name
        """

    def undocumented(src: str) -> Any: ...

    assert (read(malformed).summary, read(malformed).arguments) == ("Rows of a table.", {})
    assert (read(undocumented).summary, read(undocumented).examples) == ("", ())
