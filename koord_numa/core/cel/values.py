"""CEL values as Python types, and the errors of compilation and evaluation."""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from fractions import Fraction
from functools import total_ordering
from ipaddress import IPv4Address, IPv4Interface, IPv6Address, IPv6Interface
from itertools import count
from traceback import clear_frames
from typing import Any, Final
from urllib.parse import SplitResult


class CelError(Exception):
    """An expression cannot be compiled or evaluated. The message is a sentence without a position prefix."""


class CompileError(CelError):
    """The text is not a valid expression, or no overload accepts the operand types."""

    def __init__(self, message: str, position: int = 0) -> None:
        super().__init__(message)
        self.position = position  # offset in characters from the start of the expression


class EvaluationError(CelError):
    """
    A value is missing or has the wrong type. ``&&``, ``||``, ``all`` and ``exists`` absorb it when another operand
    decides.
    """


class CostExceededError(CelError):
    """The evaluation exceeded the limit of cost units. No operator absorbs this error."""


class ValueTooLargeError(CostExceededError):
    """A value exceeds the size limits. No operator absorbs this error."""


_LONGEST_MESSAGE: Final = 1_000
"""Maximum characters of a kept error message. A message may quote a text that an expression has built."""


def detached(error: CelError) -> CelError:
    """
    Return the error for a cache: with a short message, and without the traceback, which refers to every value of the
    evaluation.
    """
    # The frames refer to the error too. Without this call, the values stay until the next garbage collection.
    clear_frames(error.__traceback__)
    message = str(error)[:_LONGEST_MESSAGE]
    return CompileError(message, error.position) if isinstance(error, CompileError) else type(error)(message)


NO_SUCH_OVERLOAD = "no such overload"


_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]*)", re.ASCII)
_IDENTIFIER: Final = re.compile(r"[0-9A-Za-z-]+", re.ASCII)
_LARGEST: Final = 2**64 - 1


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """A version ``major.minor.patch-pre+build``. Build metadata does not affect equality and order."""

    numbers: tuple[int, int, int]
    pre: tuple[int | str, ...] = ()
    build: tuple[str, ...] = field(default=())

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Semver) and (self.numbers, self.pre) == (other.numbers, other.pre)

    def __hash__(self) -> int:
        return hash((self.numbers, self.pre))

    def __lt__(self, other: "Semver") -> bool:
        return self._rank < other._rank

    def compare(self, other: "Semver") -> int:
        """Return -1, 0 or 1. Numbers are compared first, because most versions differ in their numbers."""
        if self.numbers != other.numbers:
            return 1 if self.numbers > other.numbers else -1
        if self.pre == other.pre:
            return 0
        return -1 if self < other else 1

    @property
    def _rank(self) -> tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]:
        """Sort key. A pre-release sorts below its release, numbers below words, and fewer identifiers below more."""
        # Three values per identifier, so that numbers sort before words and are never compared with them.
        parts = tuple((isinstance(part, str), 0 if isinstance(part, str) else part, str(part)) for part in self.pre)
        return self.numbers, not self.pre, parts


def parse_semver(text: str, normalize: bool = False) -> Semver:
    """
    Parse a version.

    ``normalize`` also accepts a leading ``v``, one or two parts, and leading zeros. Raises ``ValueError``.
    """
    if normalize:
        text = _normalized(text)
    if not text:
        raise ValueError("Version string empty")
    core, pre, build = _split(text)
    parts = core.split(".", 2)
    if len(parts) != 3:
        raise ValueError("No Major.Minor.Patch elements found")
    major, minor, patch = (_number(part) for part in parts)
    return Semver(
        (major, minor, patch), tuple(_identifier(part) for part in pre), tuple(_build(part) for part in build)
    )


def _split(text: str) -> tuple[str, list[str], list[str]]:
    # Build metadata is split off first, because it may contain dashes.
    body, plus, build = text.partition("+")
    core, dash, pre = body.partition("-")
    return core, pre.split(".") if dash else [], build.split(".") if plus else []


def _number(text: str) -> int:
    if not _NUMBER.fullmatch(text) or int(text) > _LARGEST:
        raise ValueError(f"Invalid version number {text[:40]!r}")
    return int(text)


def _identifier(text: str) -> int | str:
    if not _IDENTIFIER.fullmatch(text):
        raise ValueError(f"Invalid prerelease identifier {text[:40]!r}")
    return _number(text) if text.isdigit() else text


def _build(text: str) -> str:
    if not _IDENTIFIER.fullmatch(text):
        raise ValueError(f"Invalid build meta data {text[:40]!r}")
    return text


def _normalized(text: str) -> str:
    """Normalize a version as ``normalizeAndParse`` in apiserver/pkg/cel/library/semverlib.go."""
    text = text.removeprefix("v")
    end = next((at for at, character in enumerate(text) if character in "-+"), len(text))
    parts = text[:end].split(".", 2)
    # Only a version with three parts may have a pre-release: "1.2-a" is ambiguous.
    if len(parts) < 3 and end != len(text):
        raise ValueError("Short version cannot contain PreRelease/Build meta data")
    parts = [part.lstrip("0") or "0" if part.isdigit() else part for part in parts]
    return ".".join(parts + ["0"] * (3 - len(parts))) + text[end:]


_SUFFIXES: Final = {
    "": Fraction(1),
    **{suffix: Fraction(1, 1000**power) for power, suffix in enumerate("mun", start=1)},
    **{suffix: Fraction(1000**power) for power, suffix in enumerate("kMGTPE", start=1)},
    **{f"{suffix}i": Fraction(1024**power) for power, suffix in enumerate("KMGTPE", start=1)},
}
_QUANTITY: Final = re.compile(
    r"([+-]?(?:\d{1,30}(?:\.\d{0,30})?|\.\d{1,30}))([numkMGTPE]|[KMGTPE]i|[eE][+-]?\d{1,2})?", re.ASCII
)


def parse_quantity(text: str) -> Fraction:
    """Return the exact value of a quantity. Raises ``ValueError`` for malformed text."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text[:40]!r} is not a quantity")
    number, suffix = match.group(1), match.group(2) or ""
    if suffix[:1] in ("e", "E") and suffix not in ("E", "Ei"):
        return Fraction(number) * Fraction(10) ** int(suffix[1:])
    return Fraction(number) * _SUFFIXES[suffix]


INT_MIN: Final = -(2**63)
INT_MAX: Final = 2**63 - 1
UINT_MAX: Final = 2**64 - 1
NANO: Final = 10**9


class Uint(int):
    """An unsigned integer. As in CEL, it equals the int of the same value."""

    __slots__ = ()


@dataclass(frozen=True, slots=True)
class Quantity:
    """
    A ``resource.Quantity`` as a whole number of 10^-9 units, the resolution of Kubernetes. The notation is not kept.
    """

    nano: int

    @classmethod
    def of(cls, value: Fraction) -> "Quantity":
        """Build a quantity. As in apimachinery, finer values are rounded away from zero."""
        scaled = value * NANO
        return cls(-(-scaled.numerator // scaled.denominator) if scaled > 0 else scaled.numerator // scaled.denominator)


@dataclass(frozen=True, slots=True)
class Duration:
    """A duration in nanoseconds."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class Timestamp:
    """A point in time, in nanoseconds since the epoch."""

    nanoseconds: int


@dataclass(frozen=True, slots=True)
class OptionalValue:
    """A value of type ``optional(T)``: a value, or none."""

    present: bool
    value: object = None


@dataclass(frozen=True, slots=True)
class TypeValue:
    """A CEL type as a value: the result of ``type(x)``, and the value of type names."""

    name: str


@dataclass(frozen=True, slots=True)
class NamedFormat:
    """A string format of Kubernetes, such as ``dns1123Label``."""

    name: str


@dataclass(frozen=True, slots=True)
class _BoolKey:
    """A map key ``true`` or ``false``. It keeps ``true`` distinct from ``1``, which is equal in Python."""

    value: bool


@dataclass(frozen=True, slots=True)
class Unreadable:
    """An attribute value that CEL cannot represent: an unknown type, or a malformed version. Reading it is a runtime error."""

    message: str


class MapValue:
    """
    A map. A lookup of an absent key returns ``default`` if it is set, and ``MISSING`` otherwise.

    ``device.attributes`` has an empty map as default: reading an unknown domain is not an error, although ``in``
    reports the domain as absent (dynamic-resource-allocation/cel/compile.go, ``mapper``).
    """

    __slots__ = ("_entries", "default")

    def __init__(
        self, entries: Mapping[Any, object] | Iterable[tuple[Any, object]], default: "MapValue | None" = None
    ) -> None:
        pairs = entries.items() if isinstance(entries, Mapping) else entries
        self._entries = {_key(key): value for key, value in pairs}
        self.default = default

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[object]:
        return (key.value if isinstance(key, _BoolKey) else key for key in self._entries)

    def __contains__(self, key: object) -> bool:
        return _key(key) in self._entries

    def find(self, key: object) -> object:
        """Return the value of the key, or ``MISSING``. Raises ``EvaluationError`` for an ``Unreadable`` value."""
        found = self.peek(key)
        if type(found) is Unreadable:
            raise EvaluationError(found.message)
        return found

    def peek(self, key: object) -> object:
        """Return the value of the key, or ``MISSING``, without a check for ``Unreadable``."""
        # Fast path: nearly all keys are strings.
        if type(key) is str:
            found = self._entries.get(key, MISSING)
        elif isinstance(key, bool | int | float):
            found = self._entries.get(_key(key), MISSING)
        else:
            raise EvaluationError(NO_SUCH_OVERLOAD)
        if found is MISSING and self.default is not None and type(key) is str:
            return self.default
        return found

    def items(self) -> Iterator[tuple[object, object]]:
        """Iterate over keys and values. Raises ``EvaluationError`` at an ``Unreadable`` value."""
        for key, value in zip(self, self._entries.values(), strict=True):
            if type(value) is Unreadable:
                raise EvaluationError(value.message)
            yield key, value


def _key(key: object) -> object:
    return _BoolKey(key) if isinstance(key, bool) else key


class _Missing:
    """Type of the marker for an absent key."""

    def __repr__(self) -> str:
        return "MISSING"


MISSING: Final = _Missing()
NONE: Final = OptionalValue(False)
EMPTY_MAP: Final = MapValue({})

IpAddress = IPv4Address | IPv6Address
Cidr = IPv4Interface | IPv6Interface

TYPE_NAMES: Final[Mapping[type, str]] = {
    bool: "bool",
    int: "int",
    Uint: "uint",
    float: "double",
    str: "string",
    bytes: "bytes",
    type(None): "null_type",
    tuple: "list",
    MapValue: "map",
    OptionalValue: "optional_type",
    TypeValue: "type",
    Duration: "google.protobuf.Duration",
    Timestamp: "google.protobuf.Timestamp",
    Quantity: "kubernetes.Quantity",
    Semver: "kubernetes.Semver",
    SplitResult: "kubernetes.URL",
    NamedFormat: "kubernetes.NamedFormat",
    IPv4Address: "net.IP",
    IPv6Address: "net.IP",
    IPv4Interface: "net.CIDR",
    IPv6Interface: "net.CIDR",
}

NESTED: Final = frozenset({tuple, MapValue, OptionalValue, SplitResult, Semver})
"""Types whose values consist of other values."""

_NUMBERS: Final = frozenset({int, Uint, float})
# Comparing a value of these types with a value of another type is an error. Values of other types are then unequal.
_STRICT: Final = frozenset(
    {Semver, Quantity, SplitResult, NamedFormat, IPv4Address, IPv6Address, IPv4Interface, IPv6Interface}
)


def equal(left: object, right: object) -> bool:
    """
    Evaluate ``left == right``.

    Raises ``EvaluationError`` when the type of the left operand has no equality with the type of the right operand.
    """
    kind, other = type(left), type(right)
    if kind is other:
        if kind is tuple:
            return _equal_lists(left, right)  # type: ignore[arg-type]  # the types are compared above
        if kind is MapValue:
            return _equal_maps(left, right)  # type: ignore[arg-type]  # the types are compared above
        if kind is OptionalValue:
            return _equal_optionals(left, right)  # type: ignore[arg-type]  # the types are compared above
        return left == right
    if kind in _NUMBERS and other in _NUMBERS:
        return left == right
    if kind in _STRICT:
        if TYPE_NAMES[kind] == TYPE_NAMES.get(other):
            return left == right
        if other is not type(None):
            raise EvaluationError(NO_SUCH_OVERLOAD)
    return False


def same(left: object, right: object) -> bool:
    """Compare values inside lists and maps and for ``!=``. Values that cannot be compared are not the same."""
    try:
        return equal(left, right)
    except EvaluationError:
        return False


def _equal_lists(left: tuple[object, ...], right: tuple[object, ...]) -> bool:
    return len(left) == len(right) and all(map(same, left, right))


def _equal_maps(left: MapValue, right: MapValue) -> bool:
    return len(left) == len(right) and all(key in right and same(value, right.find(key)) for key, value in left.items())


def _equal_optionals(left: OptionalValue, right: OptionalValue) -> bool:
    return left.present == right.present and same(left.value, right.value)


def identity(value: object) -> object:
    """
    Return a hashable key. Two values have equal keys exactly when ``same`` holds.

    Avoids pairwise comparisons in membership tests, sets and ``distinct``. The key of a nested value is a text: Python
    randomizes the hash of texts, while an author can choose thousands of lists of numbers with one hash.
    """
    kind = type(value)
    if kind is str:
        return value
    if kind in _NUMBERS:
        # NaN is not equal to any value, including itself.
        return value if value == value else object()
    return (kind, _canonical(value)) if kind in NESTED else (TYPE_NAMES.get(kind, kind), value)


_NANS: Final = count()


def _canonical(value: Any) -> str:
    """Return a text that is equal for two values exactly when ``same`` holds."""
    kind = type(value)
    if kind in _NUMBERS:
        if value != value:
            return f"nan{next(_NANS)}"
        # 1, 1u and 1.0 are equal.
        return repr(int(value)) if kind is not float or value.is_integer() else repr(value)
    if kind is tuple:
        return f"[{','.join(map(_canonical, value))}]"
    if kind is MapValue:
        entries = sorted(f"{_canonical(key)}:{_canonical(item)}" for key, item in value.items())
        return f"{{{','.join(entries)}}}"
    if kind is OptionalValue:
        return f"optional({_canonical(value.value)})" if value.present else "none"
    if kind is Semver:
        return f"semver({value.numbers},{value.pre})"
    return repr(value)


_ORDERED: Final = frozenset({bool, str, bytes})


def compare(left: object, right: object) -> int:
    """Return -1, 0 or 1. Raises ``EvaluationError`` for types without an order."""
    kind, other = type(left), type(right)
    if (kind is other and (kind in _NUMBERS or kind in _ORDERED)) or (kind in _NUMBERS and other in _NUMBERS):
        return (left > right) - (left < right)  # type: ignore[operator,no-any-return]  # the types are compared above
    if (isinstance(left, Duration) and isinstance(right, Duration)) or (
        isinstance(left, Timestamp) and isinstance(right, Timestamp)
    ):
        return (left.nanoseconds > right.nanoseconds) - (left.nanoseconds < right.nanoseconds)
    raise EvaluationError(NO_SUCH_OVERLOAD)


def checked_int(value: int) -> int:
    """Return the value if it fits in a signed 64-bit integer. Raises ``EvaluationError`` otherwise."""
    if not INT_MIN <= value <= INT_MAX:
        raise EvaluationError("integer overflow")
    return value


def checked_uint(value: int) -> Uint:
    """Return the value if it fits in an unsigned 64-bit integer. Raises ``EvaluationError`` otherwise."""
    if not 0 <= value <= UINT_MAX:
        raise EvaluationError("unsigned integer overflow")
    return Uint(value)
