"""
Tables whose rows run in one test.

As a test of its own, a row costs 7 ms of CPU time in a run with four workers: each worker collects all tests.
"""

from collections.abc import Callable, Iterable, Iterator
from functools import wraps
from inspect import signature
from itertools import count
from typing import Any, Final

import pytest

Test = Callable[..., None]

PARAM: Final = type(pytest.param())

only: list[str] = []
"""Parts of names of rows, from the option ``--row``. Empty: all rows."""


def each_row(
    names: str | tuple[str, ...] | list[str],
    rows: Iterable[Any],
    ids: Iterable[str] | Callable[[Any], object] | None = None,
) -> Callable[[Test], Test]:
    """
    Run a test for every row, with the arguments of ``pytest.mark.parametrize``. A failure names its row, and the other rows run too.

    For quick tests without fixtures. The option ``--row TEXT`` runs only rows with this text in their name.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(_named(keys, rows, ids))

    def decorate(test: Test) -> Test:
        known = signature(test)

        @wraps(test)
        def run(*args: Any, **others: Any) -> None:
            failures = []
            for name, values in table:
                if only and not any(text in name for text in only):
                    continue
                try:
                    test(*args, **others, **dict(zip(keys, values, strict=True)))
                except Exception as error:  # noqa: BLE001  (the other rows are to run as well)
                    error.add_note(f"row {name}")
                    failures.append(error)
            if failures:
                raise ExceptionGroup(f"{len(failures)} of {len(table)} rows", failures)

        others = [parameter for name, parameter in known.parameters.items() if name not in keys]
        run.__signature__ = known.replace(parameters=others)  # type: ignore[attr-defined]  # pytest looks for fixtures there
        return run

    return decorate


def _named(
    keys: list[str], rows: Iterable[Any], ids: Iterable[str] | Callable[[Any], object] | None
) -> Iterator[tuple[str, tuple[Any, ...]]]:
    """Return name and values of each row."""
    given = iter(ids) if ids is not None and not callable(ids) else None
    for number, row in zip(count(), rows, strict=False):
        name = ""
        if isinstance(row, PARAM):
            values, name = tuple(row.values), str(row.id or "")
        else:
            values = (row,) if len(keys) == 1 else tuple(row)
        if given is not None:
            name = name or next(given)
        elif callable(ids):
            name = name or "-".join(str(ids(value)) for value in values)
        yield name or f"{number}: {', '.join(map(repr, values))}"[:120], values
