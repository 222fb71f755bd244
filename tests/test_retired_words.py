"""
Words that the project no longer uses stay out of the names of modules, classes and functions.

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
    """The module's name, and those of its classes and functions."""
    yield path.parent.name if path.stem == "__init__" else path.stem
    for node in ast.walk(ast.parse(path.read_text())):
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
