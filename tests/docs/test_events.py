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


def trees() -> Iterator[ast.Module]:
    for path in sorted(PACKAGE.rglob("*.py")):
        if "sandbox" not in path.relative_to(PACKAGE).parts:
            yield ast.parse(path.read_text(encoding="utf-8"))


def constants(tree: ast.Module) -> dict[str, str]:
    """Names of this module that stand for one text."""
    found = {}
    for node in tree.body:
        target = (
            node.target
            if isinstance(node, ast.AnnAssign)
            else node.targets[0]
            if isinstance(node, ast.Assign)
            else None
        )
        value = getattr(node, "value", None)
        if isinstance(target, ast.Name) and isinstance(value, ast.Constant) and isinstance(value.value, str):
            found[target.id] = value.value
    return found


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
    modules = list(trees())
    known = {name: text for tree in modules for name, text in constants(tree).items() if REASON.fullmatch(text)}
    found: set[str] = set()
    for tree in modules:
        near = {**known, **constants(tree)}
        for node in ast.walk(tree):
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
