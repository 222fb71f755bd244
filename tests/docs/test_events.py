"""``docs/events.md`` names the reason of every event that the code writes, and no other."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parents[2]
PACKAGE: Final = ROOT / "koord_numa"
RECORDS: Final = re.compile(r"^_?(?:\w+_)?event$|^_report$")
"""Methods that post an event: those of the recorder, and private ones that hand a reason on."""

REASON: Final = re.compile(r"(?=\w*[a-z])[A-Z]\w{4,}")


CONSTANT: Final = re.compile(r'^(\w+)(?:: [^=\n]+)? = "((?=\w*[a-z])[A-Z]\w{4,})"$', re.MULTILINE)
"""A constant of a module that may be a reason."""

POSTS: Final = re.compile(r"event\(|_report\(|reportingController")
"""Modules without these words post no events and are not parsed."""


def sources() -> list[str]:
    paths = [path for path in sorted(PACKAGE.rglob("*.py")) if "sandbox" not in path.relative_to(PACKAGE).parts]
    return [path.read_text(encoding="utf-8") for path in paths]


def constants(source: str) -> dict[str, str]:
    """Constants of a module by name."""
    return dict(CONSTANT.findall(source))


def reasons(expression: ast.expr, known: dict[str, str]) -> Iterator[str]:
    """The texts that an expression may stand for: a text, a constant, or either of two."""
    if isinstance(expression, ast.IfExp):
        yield from reasons(expression.body, known)
        yield from reasons(expression.orelse, known)
    elif isinstance(expression, ast.Constant) and isinstance(expression.value, str):
        yield expression.value
    elif isinstance(expression, ast.Name) and expression.id in known:
        yield known[expression.id]


def written() -> set[str]:
    """Reasons that calls of the recorder, and event objects of the node agent, name."""
    modules = sources()
    known = {name: text for source in modules for name, text in constants(source).items()}
    found: set[str] = set()
    for source in filter(POSTS.search, modules):
        near = {**known, **constants(source)}
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and RECORDS.match(node.func.attr):
                given = [word.value for word in node.keywords if word.arg == "reason"] or node.args[:1]
                found.update(text for one in given for text in reasons(one, near))
            elif isinstance(node, ast.Dict):
                keys = [key.value if isinstance(key, ast.Constant) else None for key in node.keys]
                if "reason" in keys and "reportingController" in keys:
                    found.update(reasons(node.values[keys.index("reason")], near))
    return {text for text in found if REASON.fullmatch(text)}


def test_the_page_names_every_event() -> None:
    rows = re.findall(r"^\| `(\w+)` \| (?:Normal|Warning)", (ROOT / "docs" / "events.md").read_text(), re.MULTILINE)
    assert len(rows) == len(set(rows))
    assert set(rows) == written()
