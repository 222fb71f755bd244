"""
Tables whose rows run in one test.

As a test of its own, a row costs 7 ms of CPU time in a run with four workers: each worker collects all tests.
"""

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from functools import wraps
from inspect import iscoroutinefunction, signature
from itertools import count
from typing import Any, Final, Self

import pytest

Test = Callable[..., Any]

PARAM: Final = type(pytest.param())

only: list[str] = []
"""Parts of names of rows, from the option ``--row``. Empty: all rows."""

all_seeds = False
"""Whether every seed runs, as in ``make chaos``."""


def each_row(
    names: str | tuple[str, ...] | list[str],
    rows: Iterable[Any],
    ids: Iterable[str] | Callable[[Any], object] | None = None,
    *,
    every: int = 1,
) -> Callable[[Test], Test]:
    """
    Run a test for every row, with the arguments of ``pytest.mark.parametrize``. A failure names its row, and the other rows run too.

    For quick tests without fixtures of a row, such as ``tmp_path``. The option ``--row TEXT`` runs only rows with this text in their name.
    Of random seeds, ``make test`` runs one of ``every``, and ``make chaos`` all.
    """
    keys = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    table = list(_named(keys, rows, ids))

    def decorate(test: Test) -> Test:
        known = signature(test)

        def chosen() -> list[tuple[str, dict[str, Any]]]:
            rows = [(name, dict(zip(keys, values, strict=True))) for name, values in table]
            if only:
                return [row for row in rows if any(text in row[0] for text in only)]
            return rows if all_seeds else rows[::every]

        @wraps(test)
        def run(*args: Any, **others: Any) -> None:
            with _Failures(len(table)) as failures:
                for name, values in chosen():
                    with failures.of(name):
                        test(*args, **others, **values)

        @wraps(test)
        async def run_async(*args: Any, **others: Any) -> None:
            with _Failures(len(table)) as failures:
                for name, values in chosen():
                    with failures.of(name):
                        await test(*args, **others, **values)

        others = [parameter for name, parameter in known.parameters.items() if name not in keys]
        made: Test = run_async if iscoroutinefunction(test) else run
        made.__signature__ = known.replace(parameters=others)  # type: ignore[attr-defined]  # pytest looks for fixtures there
        return made

    return decorate


class _Failures:
    """The failures of rows, raised together at the end."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._found: list[Exception] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._found:
            raise ExceptionGroup(f"{len(self._found)} of {self._rows} rows", self._found)

    @contextmanager
    def of(self, row: str) -> Iterator[None]:
        """Keep an exception for the end, with the name of the row."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  (the other rows are to run as well)
            error.add_note(f"row {row}")
            self._found.append(error)


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
