"""Where commands print: as wide as the terminal, and of a fixed width where there is none, so that output can be compared."""

from typing import Final

from rich.console import Console

PLAIN_WIDTH: Final = 100


def open_console() -> Console:
    """Standard output. Nothing is coloured by guessing; long lines of tables are left to the terminal."""
    console = Console(highlight=False, soft_wrap=True)
    return console if console.is_terminal else Console(highlight=False, soft_wrap=True, width=PLAIN_WIDTH)
