"""
``python -m bench``: measure every figure, print one line each, and leave with status 1 when a target is missed.

A module of this package takes part by defining ``figures() -> Iterator[Figure]``. ``--only`` selects by module name or
by figure name, so figures are best named after their module (``koord_cpu.py`` yields ``koord-cpu mean``); a module
whose figures are named otherwise lists their beginnings in ``NAMES``. Modules that cannot match are not run.
"""

import argparse
import importlib
import json
import pkgutil
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import bench
from bench.figure import Figure, NotMeasurableError


@dataclass(frozen=True, slots=True)
class Group:
    """One module's figures, and the names under which they can be asked for."""

    name: str
    prefixes: tuple[str, ...]
    figures: Callable[[], Iterator[Figure]]

    def selected(self, only: str) -> bool:
        """Can any of this group's figures have been asked for?"""
        # Either way round: `merge` selects the module, and `engine-cold-5000` the module whose name it begins with.
        return only in self.name or any(only in prefix or only.startswith(prefix) for prefix in self.prefixes)

    def wanted(self, figure: Figure, only: str) -> bool:
        """Asking for a group asks for all its figures."""
        return only in self.name or only in plain(figure.name)


def plain(name: str) -> str:
    """Names compare without regard to case and to the way words are joined."""
    return name.lower().replace("_", "-").strip()


def groups() -> Iterator[Group]:
    """Every module of the package that measures something, by name."""
    # By last name, so that the order does not change when modules move between folders.
    for found in sorted(
        pkgutil.walk_packages(bench.__path__, "bench."), key=lambda module: module.name.rpartition(".")[2]
    ):
        last = found.name.rpartition(".")[2]
        if last.startswith("_"):
            continue
        module = importlib.import_module(found.name)
        figures = getattr(module, "figures", None)
        if figures is not None:
            name = plain(last)
            prefixes = (name, *(plain(prefix) for prefix in getattr(module, "NAMES", ())))
            yield Group(name, prefixes, figures)


def measure(chosen: Sequence[Group], only: str) -> Iterator[Figure]:
    """Run the chosen groups one after the other and hand on what was asked for."""
    for group in chosen:
        try:
            yield from (figure for figure in group.figures() if group.wanted(figure, only))
        except NotMeasurableError as error:
            # The rest is measured all the same: most machines lack a browser or the recorded inputs.
            print(f"{group.name}: not measured: {error}", file=sys.stderr)


def main(arguments: Sequence[str] | None = None) -> int:
    """The exit status: 0 all targets reached, 1 some missed, 2 nothing by that name."""
    parser = argparse.ArgumentParser(prog="bench", description="Measure every figure beside its target.")
    parser.add_argument("--only", default="", help="part of the name of a figure or of its module")
    parser.add_argument("--json", type=Path, metavar="FILE", help="also write the figures to this file")
    options = parser.parse_args(arguments)
    only = plain(options.only)
    chosen = [group for group in groups() if group.selected(only)]
    if not chosen:
        print(f"nothing to measure by the name of {options.only!r}", file=sys.stderr)
        return 2
    measured: list[Figure] = []
    for figure in measure(chosen, only):
        # At once: a full run is long, and what was measured should not be lost with it.
        print(figure, flush=True)
        measured.append(figure)
    if options.json:
        options.json.write_text(json.dumps([figure.as_json() for figure in measured], indent=1) + "\n")
    return 0 if all(figure.ok for figure in measured) else 1


if __name__ == "__main__":
    sys.exit(main())
