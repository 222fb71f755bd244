"""Every file and module that documents and docstrings name exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "koord_numa"
TEXTS = sorted([*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *PACKAGE.glob("**/*.py")])
LAYERS = "|".join(path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists())
FILE = re.compile(rf"`((?:\w+/)*\w+\.py|(?:{LAYERS}|tests)/(?:\w+/)*)`")
NAME = re.compile(rf"`((?:{LAYERS})(?:\.\w+)+)`")


def file_exists(name: str, near: Path) -> bool:
    """Files are named from the root, from the package, or, without a folder, from anywhere."""
    if any((folder / name).exists() for folder in (ROOT, PACKAGE, near)):
        return True
    return "/" not in name and any(True for _ in ROOT.glob(f"[!.]*/**/{name}"))


def object_exists(name: str) -> bool:
    """A dotted name is a module, or a module with the name of a class, function or field."""
    parts = name.split(".")
    for length in range(len(parts), 1, -1):
        module = PACKAGE.joinpath(*parts[:length])
        for file in (module.with_suffix(".py"), module / "__init__.py"):
            if file.exists():
                words = set(re.findall(r"\w+", file.read_text()))
                return words.issuperset(parts[length:])
    return False


@pytest.mark.parametrize(("pattern", "least"), [(FILE, 120), (NAME, 10)], ids=["files", "names"])
def test_what_is_named_exists(pattern: re.Pattern[str], least: int) -> None:
    named = [(text, name) for text in TEXTS for name in pattern.findall(text.read_text())]
    assert len(named) > least
    missing = [
        f"{text.relative_to(ROOT)}: {name}"
        for text, name in named
        if not (file_exists(name, text.parent) if pattern is FILE else object_exists(name))
    ]
    assert missing == []
