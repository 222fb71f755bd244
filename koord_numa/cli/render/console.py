"""Where commands print: as wide as the terminal, and of a fixed width where there is none, so that output can be compared."""

from collections.abc import Iterable
from typing import Final

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment

from koord_numa.view.printable import printable

PLAIN_WIDTH: Final = 100


class PrintableConsole(Console):
    """A console on which no text from an object controls the terminal: tables, trees and pictures all pass here."""

    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Segments of printable text. Controls are those of ``rich`` itself, and have no text from objects."""
        for segment in super().render(renderable, options):
            text = segment.text if segment.control else printable(segment.text)
            yield segment if text == segment.text else Segment(text, segment.style)


def open_console() -> Console:
    """Standard output. Nothing is coloured by guessing; long lines of tables are left to the terminal."""
    console = PrintableConsole(highlight=False, soft_wrap=True)
    return console if console.is_terminal else PrintableConsole(highlight=False, soft_wrap=True, width=PLAIN_WIDTH)
