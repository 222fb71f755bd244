"""Rows of text in columns that line up, without frames: reads the same in a terminal, in a pipe and in an issue."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from rich.text import Text

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Columns:
    """
    ``headings`` over ``rows``; a row of a single text is a line of its own, such as the name of a group.

    The last column is as wide as it needs to be, the others as wide as their widest cell.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str | Text]]

    def lines(self, indent: int = 0) -> Iterator[Text]:
        """The heading, then a line a row, each ``indent`` spaces to the right except those of their own."""
        full = [row for row in self.rows if len(row) == len(self.headings)]
        widths = [
            max([len(heading), *(len(_plain(row[at])) for row in full)]) for at, heading in enumerate(self.headings)
        ]
        yield _line([Text(heading, "bold") for heading in self.headings], widths, indent)
        for row in self.rows:
            yield _line(row, widths, indent) if len(row) == len(self.headings) else _text(row[0])


def _line(cells: Sequence[str | Text], widths: Sequence[int], indent: int) -> Text:
    line = Text(" " * indent)
    for cell, width in zip(cells, widths, strict=True):
        line.append_text(_text(cell))
        line.append(" " * (width - len(_plain(cell))) + _GAP)
    line.rstrip()
    return line


def _text(cell: str | Text) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(cell)


def _plain(cell: str | Text) -> str:
    return cell.plain if isinstance(cell, Text) else cell
