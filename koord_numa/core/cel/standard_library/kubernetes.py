"""Kubernetes' quantities and semantic versions (apiserver/pkg/cel/library/quantity.go, semverlib.go)."""

from typing import Any, Final

from koord_numa.core.cel.errors import EvaluationError
from koord_numa.core.cel.standard_library.costs import traversal
from koord_numa.core.cel.values.functions import row
from koord_numa.core.cel.values.quantity import parse_quantity
from koord_numa.core.cel.values.semver import Semver, parse_semver
from koord_numa.core.cel.values.values import INT_MAX, INT_MIN, NANO, Quantity


def _quantity(text: str) -> Quantity:
    try:
        return Quantity.of(parse_quantity(text))
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _is_quantity(text: str) -> bool:
    try:
        parse_quantity(text)
    except ValueError:
        return False
    return True


def _is_integer(quantity: Quantity) -> bool:
    # Exact integers of 10^-9 units, so that no quantity is rounded.
    whole, rest = divmod(quantity.nano, NANO)
    return not rest and INT_MIN <= whole <= INT_MAX


def _as_integer(quantity: Quantity) -> int:
    if not _is_integer(quantity):
        raise EvaluationError("cannot convert value to integer")
    return quantity.nano // NANO


def _semver(text: str, normalize: bool = False) -> Semver:
    try:
        return parse_semver(text, normalize)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _is_semver(text: str, normalize: bool = False) -> bool:
    try:
        parse_semver(text, normalize)
    except ValueError:
        return False
    return True


def _read_versions(frame: Any, left: Semver, right: Semver) -> None:
    """Versions of three numbers are compared in constant time."""
    if left.pre or right.pre:
        frame.read(left, right)


def _order(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


ROWS: Final = (
    row("quantity(string) -> quantity", _quantity, traversal),
    row("isQuantity(string) -> bool", _is_quantity, traversal),
    row("sign(quantity) -> int", lambda it: _order(it.nano, 0)),
    row("quantity.isInteger() -> bool", _is_integer),
    row("quantity.asInteger() -> int", _as_integer),
    row("quantity.asApproximateFloat() -> double", lambda it: it.nano / NANO),
    row("quantity.add(quantity) -> quantity", lambda a, b: Quantity(a.nano + b.nano)),
    row("quantity.add(int) -> quantity", lambda a, b: Quantity(a.nano + b * NANO)),
    row("quantity.sub(quantity) -> quantity", lambda a, b: Quantity(a.nano - b.nano)),
    row("quantity.sub(int) -> quantity", lambda a, b: Quantity(a.nano - b * NANO)),
    row("quantity.isLessThan(quantity) -> bool", lambda a, b: a.nano < b.nano),
    row("quantity.isGreaterThan(quantity) -> bool", lambda a, b: a.nano > b.nano),
    row("quantity.compareTo(quantity) -> int", lambda a, b: _order(a.nano, b.nano)),
    row("semver(string) -> semver", _semver, traversal),
    row("semver(string, bool) -> semver", _semver, traversal),
    row("isSemver(string) -> bool", _is_semver, traversal),
    row("isSemver(string, bool) -> bool", _is_semver, traversal),
    row("semver.major() -> int", lambda it: it.numbers[0]),
    row("semver.minor() -> int", lambda it: it.numbers[1]),
    row("semver.patch() -> int", lambda it: it.numbers[2]),
    row("semver.isLessThan(semver) -> bool", lambda a, b: a.compare(b) < 0, work=_read_versions),
    row("semver.isGreaterThan(semver) -> bool", lambda a, b: a.compare(b) > 0, work=_read_versions),
    row("semver.compareTo(semver) -> int", Semver.compare, work=_read_versions),
)
