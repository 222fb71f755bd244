"""``-w``: what a command shows, printed again when it changes, until Ctrl-C."""

import time
from collections.abc import Callable, Sequence
from typing import Final

import click
from rich.console import Console
from rich.text import Text

from koord_numa.cli.cluster.access import Access
from koord_numa.cli.render.output import Output

SECONDS: Final = 2.0
"""Between two looks at the cluster."""

Lines = Sequence[str | Text]


def check_watch(watch: bool, access: Access, output: Output) -> None:
    """Raises ``click.UsageError`` where nothing can change, or where the output is one document."""
    if watch and (access.files or not output.is_table):
        raise click.UsageError("--watch needs a cluster, and a table as its output")


def print_changes(console: Console, read: Callable[[], Lines], *, watch: bool) -> None:
    """Print the lines once; with ``watch`` all of them again, below an empty line, whenever one has changed."""
    shown = read()
    _print(console, shown)
    while watch:
        time.sleep(SECONDS)
        lines = read()
        if lines != shown:
            console.print()
            _print(console, lines)
        shown = lines


def _print(console: Console, lines: Lines) -> None:
    for line in lines:
        console.print(line, markup=False)
