"""
Words that the project no longer uses stay out of the names of modules, classes and functions, and out of its prose.

Each had a standard term in kube-scheduler, client-go, the kubelet, Koordinator or Kopf; ``docs/architecture.md`` has the glossary.
"""

import ast
import re
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[1]

RETIRED: Final = frozenset(
    {
        "desk", "errand", "reception", "roll", "census", "roster", "crew", "aftercare", "tenant", "tenants", "shy", "strangers",
        "surmise", "rehearse", "doubt", "mind", "minds", "onlooker", "unheard", "wish", "wishes", "sheet",
    }
)  # fmt: skip
"""Single words of a name, as ``snake_case`` and ``CamelCase`` separate them."""

RETIRED_PAIRS: Final = frozenset({("waiting", "room"), ("storage", "room"), ("wide", "look")})

RETIRED_PROSE: Final = re.compile(
    r"\b(nobody|whoever|somebody|everybody|anybody|anew|folks?|stranger|strangers|crew|errand|roster|the books)\b",
    re.IGNORECASE,
)
"""Prose names a technical subject: a pod, a node, an exporter, another scheduler."""

PROSE: Final = (
    "koord_numa",
    "tests",
    "bench",
    "docs",
    "deploy",
    "examples",
    "README.md",
    "CONTRIBUTING.md",
    "SECURITY.md",
)

_DEFINED: Final = re.compile(r"(?:class|def)\s+(\w+)")
"""The names of all definitions, and words of texts that look like one."""

_WORD: Final = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")


def words_of(name: str) -> list[str]:
    """``PodWatch`` and ``pod_watch`` as ``["pod", "watch"]``."""
    return [word.lower() for word in _WORD.findall(name)]


def retired_in(name: str) -> list[str]:
    """The retired words of one name."""
    words = words_of(name)
    pairs = [" ".join(pair) for pair in pairwise(words) if pair in RETIRED_PAIRS]
    return sorted(RETIRED.intersection(words)) + pairs


def names_in(path: Path) -> Iterator[str]:
    """The module's name, and those of its classes and functions where any of them may be retired."""
    yield path.parent.name if path.stem == "__init__" else path.stem
    text = path.read_text()
    # What looks like a definition may be in a text, and is no name then; taking all files apart takes seconds.
    if not any(retired_in(name) for name in _DEFINED.findall(text)):
        return
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            yield node.name


@pytest.mark.parametrize("folder", ["koord_numa", "tests", "bench", "examples"])
def test_retired_words_stay_out_of_names(folder: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}: {name} ({', '.join(words)})"
        for path in sorted((ROOT / folder).rglob("*.py"))
        for name in names_in(path)
        if (words := retired_in(name))
    ]
    assert "\n".join(found) == ""


def texts_in(part: str) -> Iterator[Path]:
    """Files of one part of the project that people read, apart from this one, which has to name the words."""
    path = ROOT / part
    found = path.rglob("*") if path.is_dir() else [path]
    suffixes = {".py", ".md", ".yaml", ".js", ".html", ".j2"}
    return (one for one in sorted(found) if one.suffix in suffixes and one != Path(__file__))


@pytest.mark.parametrize("part", PROSE)
def test_retired_words_stay_out_of_prose(part: str) -> None:
    found = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in texts_in(part)
        for number, line in enumerate(path.read_text().splitlines(), 1)
        if RETIRED_PROSE.search(line)
    ]
    assert "\n".join(found) == ""


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        pytest.param("RebindDesk", ["desk"], id="camel"),
        pytest.param("never_mind_others", ["mind"], id="snake"),
        pytest.param("WaitingRoom", ["waiting room"], id="pair"),
        pytest.param("rollback", [], id="part-of-a-word"),
        pytest.param("roll_back", ["roll"], id="verb"),
    ],
)
def test_words_of_a_name(name: str, expected: list[str]) -> None:
    assert retired_in(name) == expected
