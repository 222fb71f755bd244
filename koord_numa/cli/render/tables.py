"""Tables and text for terminals, with colors."""

from collections.abc import Iterable, Iterator, Sequence

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from koord_numa.cli.render.output import PLAIN_WIDTH
from koord_numa.core.value_objects import ValueObject
from koord_numa.view.printable import printable

_GAP = "  "


class Columns(ValueObject):
    """
    A table with ``headings`` and ``rows``. A row with a single text is a separate line, such as the name of a group.

    The width of a column is that of its widest cell, except for the last column.
    """

    headings: Sequence[str]
    rows: Sequence[Sequence[str | Text]]

    def lines(self, indent: int = 0) -> Iterator[Text]:
        """Yield the heading, then a line per row. All lines except separate lines are indented by ``indent`` spaces."""
        full = [row for row in self.rows if len(row) == len(self.headings)]
        widths = [
            max([len(heading), *(len(_plain_cell(row[at])) for row in full)])
            for at, heading in enumerate(self.headings)
        ]
        yield _line([Text(heading, "bold") for heading in self.headings], widths, indent)
        for row in self.rows:
            yield _line(row, widths, indent) if len(row) == len(self.headings) else _text(row[0])


def _line(cells: Sequence[str | Text], widths: Sequence[int], indent: int) -> Text:
    line = Text(" " * indent)
    for cell, width in zip(cells, widths, strict=True):
        line.append_text(_text(cell))
        line.append(" " * (width - len(_plain_cell(cell))) + _GAP)
    line.rstrip()
    return line


def _text(cell: str | Text) -> Text:
    return cell.copy() if isinstance(cell, Text) else Text(cell)


def _plain_cell(cell: str | Text) -> str:
    return cell.plain if isinstance(cell, Text) else cell


class PrintableConsole(Console):
    """A console that removes terminal controls in texts of objects, in all renderables."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Yield segments of printable text. Control segments come from ``rich`` and contain no text of objects."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


def open_console() -> Console:
    """Return a console for standard output, without automatic highlighting. The terminal wraps long table lines."""
    console = PrintableConsole(highlight=False, soft_wrap=True)
    return console if console.is_terminal else PrintableConsole(highlight=False, soft_wrap=True, width=PLAIN_WIDTH)
