"""Texts: the strings extension (version 2) and Kubernetes' regex functions, on RE2."""

from functools import lru_cache
from typing import Any, Final

import re2

from koord_numa.core.cel.compile.frame import Frame
from koord_numa.core.cel.errors import EvaluationError
from koord_numa.core.cel.standard_library.costs import regex, search, traversal
from koord_numa.core.cel.standard_library.rendering import render, render_quoted
from koord_numa.core.cel.values.functions import constant_time, row

_OPTIONS: Final = re2.Options()
# RE2's own log would write to stderr for every bad pattern of a user.
_OPTIONS.log_errors = False
# Bytes of one compiled pattern with its states; the default is 8 MiB, and many patterns are kept.
_OPTIONS.max_mem = 1 << 20


# Patterns of selectors are few and used for every device.
@lru_cache(maxsize=64)
def pattern(text: str) -> Any:
    """The compiled RE2 pattern. Raises ``ValueError`` when it is none."""
    try:
        return re2.compile(text, options=_OPTIONS)
    except re2.error as error:
        raise ValueError(f"error parsing regexp: {error}") from None


def _pattern(text: str) -> Any:
    try:
        return pattern(text)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _matches(text: str, expression: str) -> bool:
    return _pattern(expression).search(text) is not None


def _find(text: str, expression: str) -> str:
    found = _pattern(expression).search(text)
    return found.group() if found else ""


def _find_all(frame: Frame, text: str, expression: str, limit: int = -1) -> tuple[str, ...]:
    found: list[str] = []
    for match in _pattern(expression).finditer(text):
        if len(found) == limit:
            break
        # The next match may take reading the rest of the text.
        frame.charge_nodes(len(found))
        frame.charge(regex(text[match.end() :], expression))
        found.append(match.group())
    return tuple(found)


def _char_at(text: str, at: int) -> str:
    # The position after the last character is valid and gives the empty text (cel-go ext/strings.go).
    if not 0 <= at <= len(text):
        raise EvaluationError(f"index out of range: {at}")
    return text[at : at + 1]


def _substring(text: str, start: int, end: int | None = None) -> str:
    end = len(text) if end is None else end
    for at in (start, end):
        if not 0 <= at <= len(text):
            raise EvaluationError(f"index out of range: {at}")
    if start > end:
        raise EvaluationError(f"invalid substring range. start: {start}, end: {end}")
    return text[start:end]


def _index(text: str, part: str, start: int = 0) -> int:
    if not part:
        # An empty text is found anywhere, also beyond the end, as in cel-go.
        return start
    if not 0 <= start <= len(text):
        raise EvaluationError(f"index out of range: {start}")
    return text.find(part, start)


def _last_index(text: str, part: str, start: int | None = None) -> int:
    if not part:
        return len(text) if start is None else start
    if start is not None and not 0 <= start <= len(text):
        raise EvaluationError(f"index out of range: {start}")
    searched = text if start is None else text[: start + len(part)]
    # ``str.rfind`` compares at every position; ``str.find`` takes linear time.
    at = searched[::-1].find(part[::-1])
    return -1 if at < 0 else len(searched) - at - len(part)


def _split(text: str, separator: str, limit: int = -1) -> tuple[str, ...]:
    if limit == 0:
        return ()
    if not separator:
        parts = list(text)
        return tuple(parts) if limit < 0 or limit >= len(parts) else (*parts[: limit - 1], "".join(parts[limit - 1 :]))
    return tuple(text.split(separator, limit - 1 if limit > 0 else -1))


def _replace(text: str, old: str, new: str, limit: int = -1) -> str:
    return text.replace(old, new, limit)


# ASCII only: ``str.lower`` would change other letters too.
_LOWER: Final = {code: code + 32 for code in range(65, 91)}
_UPPER: Final = {code: code - 32 for code in range(97, 123)}


def _joined(items: tuple[str, ...], by: str) -> int:
    """The separators count as well: a long one between many empty texts is a long text."""
    return sum(map(traversal, items)) + traversal(by) * max(0, len(items) - 1)


def _work_of_replace(frame: Frame, text: str, old: str, new: str, limit: int = -1) -> None:
    frame.read(text, old)
    count = text.count(old)
    if limit >= 0:
        count = min(count, limit)
    frame.charge_text(max(len(text), len(text) + count * (len(new) - len(old))))


def _work_of_split(frame: Frame, text: str, separator: str, limit: int = -1) -> None:
    frame.read(text, separator)
    parts = text.count(separator) + 1 if separator else len(text)
    frame.charge_nodes(min(parts, limit) if limit >= 0 else parts)


def _work_of_join(frame: Frame, items: tuple[str, ...], by: str = "") -> None:
    frame.read(items)
    frame.charge_text(frame.size(items).characters + len(by) * max(0, len(items) - 1))


def _work_of_substring(frame: Frame, text: str, start: int, end: int | None = None) -> None:
    frame.charge_text(max(0, (len(text) if end is None else end) - start))


ROWS: Final = (
    row("string.contains(string) -> bool", lambda text, part: part in text, search),
    row("string.startsWith(string) -> bool", str.startswith, traversal),
    row("string.endsWith(string) -> bool", str.endswith, traversal),
    row("string.matches(string) -> bool", _matches, regex),
    row("matches(string, string) -> bool", _matches, regex),
    row("string.find(string) -> string", _find, regex),
    row("string.findAll(string) -> list(string)", _find_all, regex, in_frame=True),
    row("string.findAll(string, int) -> list(string)", _find_all, regex, in_frame=True),
    row("string.charAt(int) -> string", _char_at, work=constant_time),
    row("string.indexOf(string) -> int", _index, search),
    row("string.indexOf(string, int) -> int", _index, search),
    row("string.lastIndexOf(string) -> int", _last_index, search),
    row("string.lastIndexOf(string, int) -> int", _last_index, search),
    row("string.lowerAscii() -> string", lambda text: text.translate(_LOWER), traversal),
    row("string.upperAscii() -> string", lambda text: text.translate(_UPPER), traversal),
    row("string.replace(string, string) -> string", _replace, traversal, _work_of_replace),
    row("string.replace(string, string, int) -> string", _replace, traversal, _work_of_replace),
    row("string.split(string) -> list(string)", _split, traversal, _work_of_split),
    row("string.split(string, int) -> list(string)", _split, traversal, _work_of_split),
    row("string.substring(int) -> string", _substring, traversal, _work_of_substring),
    row("string.substring(int, int) -> string", _substring, traversal, _work_of_substring),
    row("string.trim() -> string", str.strip, traversal),
    row("list(string).join() -> string", "".join, lambda items: sum(map(traversal, items)), _work_of_join),
    row("list(string).join(string) -> string", lambda items, by: by.join(items), _joined, _work_of_join),
    row("string.format(list(dyn)) -> string", render, traversal, in_frame=True),
    row(
        "strings.quote(string) -> string",
        render_quoted,
        traversal,
        lambda frame, text: frame.charge_text(2 * len(text)),
    ),
)
