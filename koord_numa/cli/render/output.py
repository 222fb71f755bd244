"""Output of results: columns, ``-o`` formats as in kubectl, and ``-w``."""

import re
import shutil
import sys
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import click
import orjson
from click.shell_completion import CompletionItem

from koord_numa.core.value_objects import ValueObject
from koord_numa.view import Document
from koord_numa.view.printable import printable
from koord_numa.wire.raw_json import find

if TYPE_CHECKING:
    from rich.text import Text

    from koord_numa.cli.cluster.access import Access

FORMATS: Final = ("wide", "json", "yaml", "name")
TEMPLATES: Final = ("jsonpath=", "custom-columns=")

PLAIN_WIDTH: Final = 100
"""Columns of an output that is no terminal."""

MISSING: Final = "<none>"
"""Cell of a column without a value, as in kubectl."""


def now() -> str:
    """Return the time in RFC 3339 with whole seconds."""
    return datetime.now(UTC).isoformat(timespec="seconds").replace("+00:00", "Z")


def width() -> int:
    """Return the columns of the terminal, or ``PLAIN_WIDTH`` for other outputs."""
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else PLAIN_WIDTH


class Output(ValueObject):
    """
    The values of ``-o``, ``--no-headers``, ``--sort-by`` and ``--show-labels``. ``form`` is empty for the default table.
    """

    form: str = ""
    headers: bool = True
    sort_by: str = ""
    show_labels: bool = False

    @property
    def is_table(self) -> bool:
        """True if the output is a table."""
        return self.form in ("", "wide")

    def ordered(self, entries: Iterable[Document]) -> list[Document]:
        """Return entries in the order of ``--sort-by``, a JSONPath; entries without a value come first."""
        if not self.sort_by:
            return list(entries)
        path = self.sort_by if self.sort_by.startswith(("{", ".", "[")) else f".{self.sort_by}"
        return sorted(entries, key=lambda entry: _sort_key(find(entry, path)))

    def print_document(self, document: Document, names: Iterable[str] = ()) -> None:
        """
        Print a document in the chosen format. ``names`` are the lines of ``-o name``. Raises ``click.ClickException``.
        """
        if self.form == "json":
            click.echo(orjson.dumps(document, option=orjson.OPT_INDENT_2).decode())
        elif self.form == "yaml":
            import yaml

            plain = orjson.loads(orjson.dumps(document))
            click.echo(yaml.safe_dump(plain, sort_keys=False, allow_unicode=True), nl=False)
        elif self.form == "name":
            for name in names:
                click.echo(printable(name, one_line=True))
        elif self.form == "svg":
            raise click.ClickException("-o svg is supported by the command node only")
        elif self.form.startswith("custom-columns="):
            headings, rows = custom_columns(self.form.partition("=")[2], document)
            self.print_table(headings, rows)
        else:
            click.echo(printable(render_jsonpath(self.form.partition("=")[2], document)), nl=False)

    def table_lines(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
        """Return the lines of a table, without its heading under ``--no-headers``."""
        lines = plain_table(headings, rows)
        return lines if self.headers else lines[1:]

    def print_table(self, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        """Print a table, without its heading under ``--no-headers``."""
        for line in self.table_lines(headings, rows):
            click.echo(printable(line, one_line=True))


def plain_table(headings: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    """Return the heading and a line per row, with two spaces between columns."""
    cells = [list(headings), *map(list, rows)]
    widths = [max(len(row[at]) for row in cells) for at in range(len(headings))]
    return ["  ".join(cell.ljust(size) for cell, size in zip(row, widths, strict=True)).rstrip() for row in cells]


def _sort_key(found: Sequence[Any]) -> tuple[int, float, str]:
    value = found[0] if found else None
    if value is None:
        return (0, 0.0, "")
    if isinstance(value, bool | int | float):
        return (1, float(value), "")
    return (2, 0.0, value if isinstance(value, str) else orjson.dumps(value).decode())


def custom_columns(spec: str, document: Document) -> tuple[list[str], list[list[str]]]:
    """Return headings and rows of ``-o custom-columns=NAME:.path,...``. Raises ``click.ClickException``."""
    columns = [part.partition(":") for part in spec.split(",")]
    if not all(name and path for name, _, path in columns):
        raise click.ClickException(f"custom-columns: {spec!r} is not a list of NAME:.path")
    entries = document["items"] if isinstance(document.get("items"), list) else [document]
    paths = [path if path.startswith((".", "{", "[")) else f".{path}" for _, _, path in columns]
    rows = [[",".join(map(_plain, find(entry, path))) or MISSING for path in paths] for entry in entries]
    return [name for name, _, _ in columns], rows


def no_resources(namespace: str | None = None) -> None:
    """Report on stderr that nothing was found, in kubectl's words. ``namespace`` is None for other scopes."""
    click.echo(
        f"No resources found{f' in {namespace} namespace' if namespace else ''}{'.' if namespace else ''}", err=True
    )


NONE: Final = "-"
HEADINGS: Final = ("NODE", "OWNER", "POLICY", "SCOPE", "NUMA", "FREE-CPU", "LARGEST", "STATUS")
NODE_FIELDS: Final = frozenset(
    ["name", "labels", "cpusOf", "policy", "scope", "numa", "largest", "status", "pods", "held", "topologyVersion"]
)
"""Fields of an entry that ``node_row`` reads."""
WIDE: Final = ("PODS", "HELD", "TOPOLOGY-VERSION")

SHOWN_NUMA: Final = 8
"""Maximum NUMA nodes in a row."""


def _interval(numa: Mapping[str, Any]) -> str:
    least, most = numa["freeAtLeast"], numa["free"]
    return f"{most:g}" if least == most else f"{least:g}-{most:g}"


def labels_text(labels: Mapping[str, str]) -> str:
    """Return labels as ``a=b,c=d``, or ``<none>``, as in kubectl."""
    return ",".join(f"{key}={value}" for key, value in sorted(labels.items())) or MISSING


def headings_of(output: Output) -> tuple[str, ...]:
    """Return the headings of the table of nodes."""
    return (*HEADINGS, *(WIDE if output.form == "wide" else ()), *(("LABELS",) if output.show_labels else ()))


def node_row(entry: Document, output: Output) -> list[str]:
    """
    Return the row of an entry.

    FREE-CPU is ``free/total`` per NUMA node, or ``least-most/total`` where pods hold CPUs of an unknown NUMA node. LARGEST is the
    largest request that one NUMA node can serve.
    """
    numa = [f"{_interval(each)}/{each['cpus']:g}" for each in entry["numa"]]
    if len(numa) > SHOWN_NUMA:
        numa = [*numa[:SHOWN_NUMA], f"… {len(numa) - SHOWN_NUMA} more"]
    return [
        entry["name"],
        entry["cpusOf"] if entry["cpusOf"] != "none" else NONE,
        entry["policy"] or NONE,
        entry["scope"] or NONE,
        str(len(entry["numa"]) or NONE),
        ",".join(numa) or NONE,
        entry["largest"] or NONE,
        entry["status"],
        *((str(entry["pods"]), entry["held"], entry["topologyVersion"] or NONE) if output.form == "wide" else ()),
        *((labels_text(entry["labels"]),) if output.show_labels else ()),
    ]


def output_type(text: str) -> str:
    """Check a value of ``-o``. Raises ``click.BadParameter``."""
    if text in FORMATS or text == "svg" or text.startswith(TEMPLATES):
        return text
    raise click.BadParameter(f"{text!r} is none of {', '.join(FORMATS)}, jsonpath=TEMPLATE, custom-columns=COLUMNS")


def _complete_format(_: click.Context, __: click.Parameter, typed: str) -> list[CompletionItem]:
    return [CompletionItem(name) for name in (*FORMATS, *TEMPLATES) if name.startswith(typed)]


def with_output(command: Any) -> Any:
    """Add ``-o`` and ``--no-headers``. The command receives ``output``."""

    def convert(context: click.Context, _: click.Parameter, form: str) -> Output:
        params = context.params
        headers, sort_by, labels = (params.pop(name, None) for name in ("no_headers", "sort_by", "show_labels"))
        return Output(output_type(form) if form else "", not headers, sort_by or "", bool(labels))

    headers = click.option("--no-headers", is_flag=True, is_eager=True, expose_value=True, help="Omit table headings.")
    form = click.option(
        "-o",
        "--output",
        "output",
        default="",
        metavar="FORMAT",
        callback=convert,
        shell_complete=_complete_format,
        help="wide, json, yaml, name, jsonpath=TEMPLATE, custom-columns=NAME:.path,...",
    )
    return headers(form(command))


def with_sorting(command: Any) -> Any:
    """Add ``--sort-by`` and ``--show-labels`` to a command with ``with_output``."""
    order = click.option("--sort-by", is_eager=True, metavar="JSONPATH", help="Field of -o json, such as .name.")
    labels = click.option("--show-labels", is_flag=True, is_eager=True, help="Add a column of labels.")
    return order(labels(command))


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

Lines: TypeAlias = "Sequence[str | Text]"


def check_watch(watch: bool, access: "Access", output: Output) -> None:
    """
    Check that ``--watch`` is possible. Raises ``click.UsageError`` for files, and for output that is a single document.
    """
    if watch and (access.files or not output.is_table):
        raise click.UsageError("--watch needs a cluster, and a table as its output")


def print_changes(read: Callable[[], Lines], *, watch: bool) -> None:
    """Print the lines once. With ``watch``, print all lines again after an empty line when any line has changed."""
    shown = read()
    _print(shown)
    while watch:
        time.sleep(SECONDS)
        lines = read()
        if lines != shown:
            click.echo()
            _print(lines)
        shown = lines


def _print(lines: Lines) -> None:
    if all(isinstance(line, str) for line in lines):
        for line in lines:
            click.echo(printable(str(line)))
        return
    from koord_numa.cli.render.tables import open_console

    console = open_console()
    for line in lines:
        console.print(line, markup=False)
