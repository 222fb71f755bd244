"""No text of an object reaches a terminal or a log line as a control."""

import io
import logging

from hypothesis import given
from hypothesis import strategies as st
from rich.table import Table
from rich.text import Text
from rich.tree import Tree

from koord_numa.cli.logs import TextFormatter
from koord_numa.cli.render.tables import Columns, PrintableConsole
from koord_numa.view.printable import REPLACEMENT, printable
from tests.tables import each_row

HOSTILE = {
    "clear screen": "p\x1b[2J",
    "clipboard": "p\x1b]52;c;cm0gLXJmIH4=\a",
    "title": "p\x1b]0;owned\a",
    "eight-bit control": "p\x9b2J",
    "carriage return": "good\rbad",
    "backspace": "bad\b\b\bgood",
    "right to left": "p\u202etxt.exe",
    "isolate": "p\u2066x\u2069",
    "zero width": "p\u200bx",
    "line separator": "p\u2028x",
    "delete": "p\x7f",
}


@each_row("text", HOSTILE.values(), ids=HOSTILE)
def test_harmful_characters_are_replaced(text: str) -> None:
    shown = printable(text)
    assert REPLACEMENT in shown
    assert printable(shown) == shown


@each_row("text", ["", "pod-1", "größe 5 µs", "日本語", "a\nb\tc", "│ ██ · ✓"])
def test_other_texts_stay(text: str) -> None:
    assert printable(text) == text


@given(st.text())
def test_nothing_but_line_feeds_and_tabs_moves_the_cursor(text: str) -> None:
    assert all(each in "\n\t" or each.isprintable() or each.isspace() or ord(each) > 0xE000 for each in printable(text))
    assert "\n" not in printable(text, one_line=True)
    assert not {"\x1b", "\x9b", "\u202e", "\r"} & set(printable(text))


@each_row("text", HOSTILE.values(), ids=HOSTILE)
def test_tables_trees_and_texts_of_the_console_are_printable(text: str) -> None:
    table, tree = Table("name"), Tree(text)
    table.add_row(text)
    tree.add(text)
    for renderable in (
        text,
        Text(text),
        Text(text, style="bold"),
        table,
        tree,
        *Columns(["a", "b"], [[text, text]]).lines(),
    ):
        file = io.StringIO()
        PrintableConsole(file=file, width=80).print(renderable, markup=False)
        assert printable(file.getvalue()) == file.getvalue()


@each_row("text", HOSTILE.values(), ids=HOSTILE)
def test_log_lines_are_printable(text: str) -> None:
    record = logging.LogRecord("koord_numa", logging.WARNING, __file__, 1, "pod %s", (text,), None)
    record.pod = text
    line = TextFormatter().format(record)
    assert printable(line) == line
