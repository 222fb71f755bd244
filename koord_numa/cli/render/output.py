"""Output of results: columns, ``-o`` formats as in kubectl, and ``-w``."""

import re
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import click
import orjson
import yaml
from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from koord_numa.view.documents import Document
from koord_numa.view.printable import printable
from koord_numa.wire.jsonpath import find

if TYPE_CHECKING:
    from koord_numa.cli.cluster.access import Access  # it imports the Kubernetes client models, which takes a second

_GAP = "  "


@dataclass(frozen=True, slots=True)
class Columns:
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


PLAIN_WIDTH: Final = 100


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


FORMATS: Final = ("wide", "json", "yaml", "name")


@dataclass(frozen=True, slots=True)
class Output:
    """The values of ``-o`` and ``--no-headers``. ``form`` is empty for the default table."""

    form: str = ""
    headers: bool = True

    @property
    def is_table(self) -> bool:
        """Whether the output is a table for users."""
        return self.form in ("", "wide")

    def print_document(self, document: Document, names: Iterable[str] = ()) -> None:
        """
        Print a document in the chosen format. ``names`` are the lines of ``-o name``. Raises ``click.ClickException``.
        """
        if self.form == "json":
            click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        elif self.form == "yaml":
            click.echo(
                yaml.safe_dump(orjson.loads(orjson.dumps(document)), sort_keys=False, allow_unicode=True), nl=False
            )
        elif self.form == "name":
            for name in names:
                click.echo(printable(name, one_line=True))
        elif self.form == "svg":
            raise click.ClickException("svg is a form of the command node only")
        else:
            click.echo(printable(render_jsonpath(self.form.partition("=")[2], document)), nl=False)

    def table_lines(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[Text]:
        """Return the lines of a table, without its heading under ``--no-headers``."""
        lines = list(Columns(headings, rows).lines())
        return lines if self.headers else lines[1:]

    def print_table(self, console: Console, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table, without its heading under ``--no-headers``."""
        for line in self.table_lines(headings, rows):
            console.print(line)


def output_type(text: str) -> str:
    """Check a value of ``-o``. Raises ``click.BadParameter``."""
    if text in FORMATS or text == "svg" or text.startswith("jsonpath="):
        return text
    raise click.BadParameter(f"{text!r} is none of {', '.join(FORMATS)}, jsonpath=TEMPLATE")


def with_output(command: Any) -> Any:
    """Add ``-o`` and ``--no-headers``. The command receives ``output``."""

    def convert(context: click.Context, _: click.Parameter, form: str) -> Output:
        return Output(output_type(form) if form else "", not context.params.pop("no_headers", False))

    headers = click.option(
        "--no-headers", is_flag=True, is_eager=True, expose_value=True, help="Tables without headings."
    )
    form = click.option(
        "-o",
        "--output",
        "output",
        default="",
        metavar="FORMAT",
        callback=convert,
        help="wide, json, yaml, name, jsonpath=TEMPLATE.",
    )
    return headers(form(command))


_TOKEN: Final = re.compile(r"\{([^{}]*)\}")


def render_jsonpath(template: str, document: Any) -> str:
    """
    Render a template as in ``kubectl -o jsonpath``: text, ``{.path}``, ``{"text"}``, and ``{range .path}...{end}``.

    A path without a result is empty. Several values are joined by spaces. Raises ``click.ClickException`` for a
    malformed template.
    """
    text = template if "{" in template else "{" + template + "}"
    parts = _TOKEN.split(text)
    if any("{" in literal for literal in parts[::2]):
        raise click.ClickException(f"jsonpath: {template!r} has an unclosed action")
    output, rest = _block(parts, 0, document)
    if rest < len(parts):
        raise click.ClickException("jsonpath: {end} without {range}")
    return output


def _block(parts: Sequence[str], at: int, value: Any) -> tuple[str, int]:
    """Render until the end of the template or the ``{end}`` of this block. Also returns the position after it."""
    made: list[str] = []
    while at < len(parts):
        if at % 2 == 0:
            made.append(parts[at])
            at += 1
            continue
        expression = parts[at].strip()
        if expression == "end":
            return "".join(made), at + 1
        if expression.startswith("range"):
            text, at = _range(parts, at, value, expression.removeprefix("range").strip())
            made.append(text)
            continue
        made.append(_expression(expression, value))
        at += 1
    return "".join(made), at


def _range(parts: Sequence[str], at: int, value: Any, path: str) -> tuple[str, int]:
    items = [*_flattened(find(value, path))]
    made = []
    _, after = _block(parts, at + 1, None)
    if after > len(parts) or parts[after - 1].strip() != "end":
        raise click.ClickException("jsonpath: {range} without {end}")
    for item in items:
        text, _ = _block(parts, at + 1, item)
        made.append(text)
    return "".join(made), after


def _expression(expression: str, value: Any) -> str:
    if len(expression) >= 2 and expression[0] == expression[-1] and expression[0] in "\"'":
        return expression[1:-1].encode().decode("unicode_escape")
    if not expression.startswith((".", "$", "@", "[")):
        raise click.ClickException(f"jsonpath: {{{expression}}} is neither a path nor a text")
    return " ".join(_plain(found) for found in find(value, expression.removeprefix("@")))


def _flattened(found: Iterable[Any]) -> Iterator[Any]:
    for value in found:
        if isinstance(value, list):
            yield from value
        else:
            yield value


def _plain(value: Any) -> str:
    if isinstance(value, str):
        return value
    return orjson.dumps(value).decode()


SECONDS: Final = 2.0
"""Seconds between two reads of the cluster."""

Lines = Sequence[str | Text]


def check_watch(watch: bool, access: "Access", output: Output) -> None:
    """
    Check that ``--watch`` is possible. Raises ``click.UsageError`` for files, and for output that is a single document.
    """
    if watch and (access.files or not output.is_table):
        raise click.UsageError("--watch needs a cluster, and a table as its output")


def print_changes(console: Console, read: Callable[[], Lines], *, watch: bool) -> None:
    """Print the lines once. With ``watch``, print all lines again after an empty line when any line has changed."""
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
