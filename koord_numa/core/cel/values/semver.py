"""Semantic versions as the Go library ``blang/semver`` reads and orders them, which is what Kubernetes uses."""

import re
from dataclasses import dataclass, field
from functools import total_ordering
from typing import Final

_NUMBER: Final = re.compile(r"(?:0|[1-9][0-9]*)", re.ASCII)
_IDENTIFIER: Final = re.compile(r"[0-9A-Za-z-]+", re.ASCII)
_LARGEST: Final = 2**64 - 1


@total_ordering
@dataclass(frozen=True, slots=True, eq=False)
class Semver:
    """``major.minor.patch-pre+build``. Build metadata takes no part in equality and order."""

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
        """-1, 0 or 1. Most versions differ in their numbers already."""
        if self.numbers != other.numbers:
            return 1 if self.numbers > other.numbers else -1
        if self.pre == other.pre:
            return 0
        return -1 if self < other else 1

    @property
    def _rank(self) -> tuple[tuple[int, int, int], bool, tuple[tuple[bool, int, str], ...]]:
        """A pre-release is below its release; numbers are below words, and fewer identifiers below more."""
        # Three keys a part, so that numbers come before words and never compare with them.
        parts = tuple((isinstance(part, str), 0 if isinstance(part, str) else part, str(part)) for part in self.pre)
        return self.numbers, not self.pre, parts


def parse_semver(text: str, normalize: bool = False) -> Semver:
    """Read a version. ``normalize`` takes a leading ``v``, one or two parts and leading zeros too. Raises ``ValueError``."""
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
    # Build first: it may contain dashes.
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
    """As apiserver/pkg/cel/library/semverlib.go, ``normalizeAndParse``."""
    text = text.removeprefix("v")
    end = next((at for at, character in enumerate(text) if character in "-+"), len(text))
    parts = text[:end].split(".", 2)
    # Only a whole version may have a pre-release: "1.2-a" could be read in two ways.
    if len(parts) < 3 and end != len(text):
        raise ValueError("Short version cannot contain PreRelease/Build meta data")
    parts = [part.lstrip("0") or "0" if part.isdigit() else part for part in parts]
    return ".".join(parts + ["0"] * (3 - len(parts))) + text[end:]
