"""Strings and the libraries of Kubernetes, and the table of all functions."""

import re
from collections.abc import Callable, Mapping
from functools import lru_cache
from ipaddress import IPv6Address, ip_address, ip_interface
from math import isfinite
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, urlsplit

import re2

from koord_numa.core.cel import operators
from koord_numa.core.cel.functions import Overload, constant_time, parsed, regex, row, search, table, traversal
from koord_numa.core.cel.operators import format_double
from koord_numa.core.cel.runtime import CHARACTERS_PER_UNIT, LIMITS, Frame
from koord_numa.core.cel.values import (
    INT_MAX,
    INT_MIN,
    NANO,
    NONE,
    Cidr,
    EvaluationError,
    IpAddress,
    MapValue,
    NamedFormat,
    OptionalValue,
    Quantity,
    Semver,
    TypeValue,
    ValueTooLargeError,
    parse_quantity,
    parse_semver,
)

_LABEL: Final = r"[a-z0-9](?:[-a-z0-9]*[a-z0-9])?"
_WORD: Final = r"[A-Za-z0-9](?:[-A-Za-z0-9_.]*[A-Za-z0-9])?"
_DATE: Final = r"[0-9]{4}-(?:0[1-9]|1[0-2])-(?:0[1-9]|[12][0-9]|3[01])"
_PATTERNS: Final[dict[str, tuple[str, int]]] = {
    "dns1123Label": (_LABEL, 63),
    "dns1123Subdomain": (rf"{_LABEL}(?:\.{_LABEL})*", 253),
    "dns1035Label": (r"[a-z](?:[-a-z0-9]*[a-z0-9])?", 63),
    "dns1123LabelPrefix": (r"[a-z0-9][-a-z0-9]*", 63),
    "dns1123SubdomainPrefix": (rf"(?:{_LABEL}\.)*[a-z0-9][-a-z0-9]*", 253),
    "dns1035LabelPrefix": (r"[a-z][-a-z0-9]*", 63),
    "qualifiedName": (rf"(?:{_LABEL}(?:\.{_LABEL}){{0,100}}/)?{_WORD}", 317),
    "labelValue": (rf"(?:{_WORD})?", 63),
    "uri": (r"(?:[A-Za-z][A-Za-z0-9+.-]*:|/)\S*", 10240),
    "uuid": (r"(?i:[0-9a-f]{8}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{4}-?[0-9a-f]{12})", 36),
    "byte": (r"(?:[A-Za-z0-9+/]{4})*(?:[A-Za-z0-9+/]{2}==|[A-Za-z0-9+/]{3}=)?", 10240),
    "date": (_DATE, 10),
    "datetime": (rf"{_DATE}[Tt ][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(?:\.[0-9]+)?(?:[Zz]|[+-][0-9]{{2}}:[0-9]{{2}})", 64),
}
_COMPILED: Final = {name: (re.compile(pattern, re.ASCII), longest) for name, (pattern, longest) in _PATTERNS.items()}


def _validate(kind: NamedFormat, text: str) -> OptionalValue:
    """Return ``NONE`` when the text has the format, otherwise the list of errors."""
    pattern, longest = _COMPILED[kind.name]
    # The length is checked first, because it bounds the work of the pattern.
    if len(text) > longest:
        return OptionalValue(True, (f"must be no more than {longest} characters",))
    return NONE if pattern.fullmatch(text) else OptionalValue(True, (f"must be a valid {kind.name}",))


def _named(name: str) -> OptionalValue:
    return OptionalValue(True, NamedFormat(name)) if name in _PATTERNS else NONE


def _constant(name: str) -> Overload:
    return row(f"format.{name}() -> format", lambda: NamedFormat(name))


NAMED_FORMATS: Final = (
    *map(_constant, _PATTERNS),
    row("format.named(string) -> optional(format)", _named),
    row("format.validate(string) -> optional(list(string))", _validate, lambda _, text: traversal(text) * 8),
)


_CLAUSE: Final = re.compile(r"%(?:(%)|(?:\.(\d{1,3}))?([a-zA-Z]))")
_QUOTES: Final = str.maketrans(
    {
        "\a": "\\a",
        "\b": "\\b",
        "\f": "\\f",
        "\n": "\\n",
        "\r": "\\r",
        "\t": "\\t",
        "\v": "\\v",
        "\\": "\\\\",
        '"': '\\"',
    }
)


def render_quoted(text: str) -> str:
    """Return the text in quotes, with escapes."""
    return f'"{text.translate(_QUOTES)}"'


class _Output:
    """A text under construction. Every part is charged before it is kept. The total length is limited."""

    def __init__(self, frame: Frame) -> None:
        self.frame = frame
        self._parts: list[str] = []
        self._length = 0

    def append(self, part: str) -> None:
        self._length += len(part)
        if self._length > LIMITS.characters:
            raise ValueTooLargeError(f"a text is longer than {LIMITS.characters} characters")
        self.frame.charge(1 + len(part) // CHARACTERS_PER_UNIT)
        self._parts.append(part)

    def text(self) -> str:
        return "".join(self._parts)


def render(frame: Frame, template: str, arguments: tuple[object, ...]) -> str:
    """Replace the clauses of the template with the arguments, in order. Raises ``EvaluationError``."""
    parts = _Output(frame)
    at = used = 0
    for match in _CLAUSE.finditer(template):
        # A stray % would otherwise be dropped silently.
        _refuse_stray(template[at : match.start()])
        parts.append(template[at : match.start()])
        at = match.end()
        if match[1]:
            parts.append("%")
            continue
        if used >= len(arguments):
            raise EvaluationError(f"index {used} out of range")
        _clause(parts, match[3], int(match[2] or 6), arguments[used])
        used += 1
    _refuse_stray(template[at:])
    parts.append(template[at:])
    return parts.text()


def _refuse_stray(text: str) -> None:
    if "%" in text:
        raise EvaluationError("could not parse formatting clause: unexpected end of string")


def _clause(output: _Output, letter: str, precision: int, value: object) -> None:
    if letter == "s":
        _text(output, value)
        return
    clause = _CLAUSES.get(letter)
    if clause is None:
        raise EvaluationError(f"could not parse formatting clause: unrecognized formatting clause {letter!r}")
    output.append(clause(value, precision))


def _text(output: _Output, value: object) -> None:
    if isinstance(value, tuple) and not isinstance(value, SplitResult):
        output.append("[")
        for at, item in enumerate(value):
            if at:
                output.append(", ")
            _text(output, item)
        output.append("]")
    elif isinstance(value, MapValue):
        # Sorted, as in cel-go: the order of a Go map is random.
        entries: list[str] = []
        for key, item in value.items():
            entry = _Output(output.frame)
            _text(entry, key)
            entry.append(": ")
            _text(entry, item)
            entries.append(entry.text())
        output.append("{")
        output.append(", ".join(sorted(entries)))
        output.append("}")
    else:
        output.append(_scalar_text(value))


def _scalar_text(value: object) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, float):
        return format_double(value)
    if isinstance(value, TypeValue):
        return value.name
    if value is None:
        return "null"
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str | int):
        return str(value)
    raise EvaluationError(
        _wrong("string clause can only be used on strings, bools, bytes, ints, doubles, maps, lists, types", value)
    )


def _decimal(value: object, _: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(_wrong("decimal clause can only be used on numbers", value))
    return format_double(value) if isinstance(value, float) else str(int(value))


def _number(value: object) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise EvaluationError(_wrong("fixed-point and scientific clauses can only be used on numbers", value))
    return float(value)


def _fixed(value: object, precision: int) -> str:
    number = _number(value)
    return f"{number:.{precision}f}" if isfinite(number) else format_double(number)


def _scientific(value: object, precision: int) -> str:
    number = _number(value)
    return f"{number:.{precision}e}" if isfinite(number) else format_double(number)


def _binary(value: object, _: int) -> str:
    if not isinstance(value, int):
        raise EvaluationError(_wrong("only ints, uints and bools can be formatted as binary", value))
    return format(int(value), "b")


def _octal(value: object, _: int) -> str:
    if isinstance(value, bool) or not isinstance(value, int):
        raise EvaluationError(_wrong("octal clause can only be used on ints and uints", value))
    return format(int(value), "o")


def _hexadecimal(value: object, _: int) -> str:
    if isinstance(value, str | bytes):
        return (value.encode() if isinstance(value, str) else value).hex()
    if isinstance(value, bool) or not isinstance(value, int):
        raise EvaluationError(_wrong("only ints, uints, bytes and strings can be formatted as hex", value))
    return format(int(value), "x")


def _wrong(rule: str, value: object) -> str:
    return f"error during formatting: {rule}, was given {type(value).__name__}"


_CLAUSES: Final[dict[str, Callable[[object, int], str]]] = {
    "d": _decimal,
    "f": _fixed,
    "e": _scientific,
    "b": _binary,
    "o": _octal,
    "x": _hexadecimal,
    "X": lambda value, precision: _hexadecimal(value, precision).upper(),
}


_OPTIONS: Final = re2.Options()
# RE2 would otherwise log every invalid user pattern to stderr.
_OPTIONS.log_errors = False
# Maximum bytes of one compiled pattern with its states. The default is 8 MiB, and many patterns are cached.
_OPTIONS.max_mem = 1 << 20


# Selectors have few patterns and use them for every device.
@lru_cache(maxsize=64)
def pattern(text: str) -> Any:
    """Return the compiled RE2 pattern. Raises ``ValueError`` for an invalid pattern."""
    try:
        return re2.compile(text, options=_OPTIONS)
    except re2.error as error:
        raise ValueError(f"error parsing regexp: {error}") from None


def _pattern(text: str) -> Any:
    try:
        return pattern(text)
    except ValueError as error:
        raise EvaluationError(str(error)) from None


def _search(text: str, expression: str) -> Any:
    # RE2 searches in UTF-8. For a ``str``, its wrapper converts the byte positions of all groups to characters.
    return _pattern(expression).search(text.encode())


def _matches(text: str, expression: str) -> bool:
    return _search(text, expression) is not None


def _find(text: str, expression: str) -> str:
    found = _search(text, expression)
    return found.group().decode() if found else ""


def _find_all(frame: Frame, text: str, expression: str, limit: int = -1) -> tuple[str, ...]:
    found: list[str] = []
    compiled = _pattern(expression)
    for match in compiled.finditer(text):
        if len(found) == limit:
            break
        # Finding the next match may require reading the rest of the text.
        frame.charge_nodes(len(found))
        frame.charge((len(text) - match.end()) * compiled.programsize // INSTRUCTIONS_PER_UNIT)
        found.append(match.group())
    return tuple(found)


def _char_at(text: str, at: int) -> str:
    # The index after the last character is valid and returns an empty string (cel-go ext/strings.go).
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
        # As in cel-go, an empty string is found at any position, also beyond the end.
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
    # ``str.rfind`` compares at every position. ``str.find`` takes linear time.
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


# ASCII only: ``str.lower`` would also change other letters.
_LOWER: Final = {code: code + 32 for code in range(65, 91)}
_UPPER: Final = {code: code - 32 for code in range(97, 123)}


def _joined(items: tuple[str, ...], by: str) -> int:
    """
    Return the cost of a join, including separators: a long separator between many empty strings builds a long string.
    """
    return sum(map(traversal, items)) + traversal(by) * max(0, len(items) - 1)


INSTRUCTIONS_PER_UNIT: Final = 64
"""
Steps of a compiled pattern per work unit. In the worst case, RE2 runs every instruction for every character, at 6 ns.

Upstream counts the characters of the pattern, but ``(a|b){900}`` compiles to 2,700 instructions.
"""


def _work_of_regex(frame: Frame, text: str, expression: str, *_: object) -> None:
    frame.read(text, expression)
    # The compilation takes as long as about 16 steps for every instruction.
    frame.charge((len(text) + 16) * _pattern(expression).programsize // INSTRUCTIONS_PER_UNIT)


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


STRING_ROWS: Final = (
    row("string.contains(string) -> bool", lambda text, part: part in text, search),
    row("string.startsWith(string) -> bool", str.startswith, traversal),
    row("string.endsWith(string) -> bool", str.endswith, traversal),
    row("string.matches(string) -> bool", _matches, regex, _work_of_regex),
    row("matches(string, string) -> bool", _matches, regex, _work_of_regex),
    row("string.find(string) -> string", _find, regex, _work_of_regex),
    row("string.findAll(string) -> list(string)", _find_all, regex, _work_of_regex, in_frame=True),
    row("string.findAll(string, int) -> list(string)", _find_all, regex, _work_of_regex, in_frame=True),
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
    # Integer arithmetic in 10^-9 units avoids rounding.
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
    """Charge a comparison of versions. Versions without a pre-release are compared in constant time."""
    if left.pre or right.pre:
        frame.read(left, right)


def _order(left: Any, right: Any) -> int:
    return int(left > right) - int(left < right)


KUBERNETES_ROWS: Final = (
    row("quantity(string) -> quantity", _quantity, traversal, parsed),
    row("isQuantity(string) -> bool", _is_quantity, traversal, parsed),
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
    row("semver(string) -> semver", _semver, traversal, parsed),
    row("semver(string, bool) -> semver", _semver, traversal, parsed),
    row("isSemver(string) -> bool", _is_semver, traversal, parsed),
    row("isSemver(string, bool) -> bool", _is_semver, traversal, parsed),
    row("semver.major() -> int", lambda it: it.numbers[0]),
    row("semver.minor() -> int", lambda it: it.numbers[1]),
    row("semver.patch() -> int", lambda it: it.numbers[2]),
    row("semver.isLessThan(semver) -> bool", lambda a, b: a.compare(b) < 0, work=_read_versions),
    row("semver.isGreaterThan(semver) -> bool", lambda a, b: a.compare(b) > 0, work=_read_versions),
    row("semver.compareTo(semver) -> int", Semver.compare, work=_read_versions),
)


LONGEST_URL: Final = 10_240
"""Maximum length of a URL in characters, as for the named format ``uri``."""


def _url(text: str) -> SplitResult:
    """Parse an absolute URI or an absolute path, as Go's ``url.ParseRequestURI``."""
    # Rejected before ``urlsplit``, which would keep the long string in its cache.
    if len(text) > LONGEST_URL:
        raise EvaluationError(f"URL parse error during conversion from string: longer than {LONGEST_URL} characters")
    try:
        parts = urlsplit(text)
        # ``port`` is parsed on access and raises only then.
        _ = parts.port
    except ValueError as error:
        raise EvaluationError(f"URL parse error during conversion from string: {error}") from None
    if not (parts.scheme or text.startswith("/")):
        raise EvaluationError("URL parse error during conversion from string: invalid URI for request")
    return parts


def _ip(text: str) -> IpAddress:
    try:
        address = ip_address(text)
    except ValueError:
        raise EvaluationError(f"IP Address {text[:60]!r} parse error during conversion from string") from None
    # Kubernetes rejects both, because two spellings of one address would not be equal.
    if isinstance(address, IPv6Address) and (address.scope_id or address.ipv4_mapped):
        raise EvaluationError("IPv4-mapped IPv6 addresses and zones are not allowed")
    return address


def _cidr(text: str) -> Cidr:
    # ``ip_interface`` accepts an address without a prefix and a netmask in place of the prefix. Go's ParsePrefix
    # rejects both.
    if "/" not in text or "." in text.partition("/")[2]:
        raise EvaluationError("network address parse error during conversion from string: no prefix length")
    try:
        return ip_interface(text)
    except ValueError:
        raise EvaluationError(f"network address {text[:60]!r} parse error during conversion from string") from None


def _valid(read: Any) -> Any:
    def check(text: str) -> bool:
        try:
            read(text)
        except EvaluationError:
            return False
        return True

    return check


def _contains(outer: Cidr, address: Any) -> bool:
    address = _ip(address) if isinstance(address, str) else address
    return bool(address.version == outer.version and address in outer.network)


def _contains_cidr(outer: Cidr, inner: Any) -> bool:
    inner = _cidr(inner) if isinstance(inner, str) else inner
    return bool(inner.version == outer.version and inner.network.subnet_of(outer.network))


def _host(url: SplitResult) -> str:
    return url.netloc.rpartition("@")[2]


def _hostname(url: SplitResult) -> str:
    host = _host(url)
    return host[1 : host.find("]")] if host.startswith("[") else host.partition(":")[0]


def _query(url: SplitResult) -> MapValue:
    return MapValue((key, tuple(values)) for key, values in parse_qs(url.query, keep_blank_values=True).items())


def _global_unicast(address: IpAddress) -> bool:
    return not (address.is_unspecified or address.is_loopback or address.is_multicast or address.is_link_local)


_LINK_LOCAL_MULTICAST: Final = {4: ip_interface("224.0.0.0/24").network, 6: ip_interface("ff02::/16").network}

NETWORK: Final = (
    row("url(string) -> url", _url, traversal, parsed),
    row("isURL(string) -> bool", _valid(_url), traversal, parsed),
    row("url.getScheme() -> string", lambda url: url.scheme),
    row("url.getHost() -> string", _host),
    row("url.getHostname() -> string", _hostname),
    row("url.getPort() -> string", lambda url: "" if url.port is None else str(url.port)),
    row("url.getEscapedPath() -> string", lambda url: url.path),
    row("url.getQuery() -> map(string, list(string))", _query),
    row("ip(string) -> ip", _ip, traversal, parsed),
    row("isIP(string) -> bool", _valid(_ip), traversal, parsed),
    row("string(ip) -> string", str),
    row("ip.isCanonical(string) -> bool", lambda text: str(_ip(text)) == text, traversal, parsed),
    row("ip.family() -> int", lambda address: address.version),
    row("ip.isUnspecified() -> bool", lambda address: address.is_unspecified),
    row("ip.isLoopback() -> bool", lambda address: address.is_loopback),
    row("ip.isLinkLocalMulticast() -> bool", lambda address: address in _LINK_LOCAL_MULTICAST[address.version]),
    row("ip.isLinkLocalUnicast() -> bool", lambda address: address.is_link_local),
    row("ip.isGlobalUnicast() -> bool", _global_unicast),
    row("cidr(string) -> cidr", _cidr, traversal, parsed),
    row("isCIDR(string) -> bool", _valid(_cidr), traversal, parsed),
    row("string(cidr) -> string", str),
    row("cidr.containsIP(ip) -> bool", _contains, work=parsed),
    row("cidr.containsIP(string) -> bool", _contains, work=parsed),
    row("cidr.containsCIDR(cidr) -> bool", _contains_cidr, work=parsed),
    row("cidr.containsCIDR(string) -> bool", _contains_cidr, work=parsed),
    row("cidr.ip() -> ip", lambda cidr: cidr.ip),
    row("cidr.masked() -> cidr", lambda cidr: ip_interface(cidr.network), work=parsed),
    row("cidr.prefixLength() -> int", lambda cidr: cidr.network.prefixlen),
)


TABLE: Final[Mapping[tuple[str, bool], tuple[Overload, ...]]] = table(
    (
        *operators.OPERATOR_ROWS,
        *operators.CONVERSIONS,
        *STRING_ROWS,
        *operators.LIST_ROWS,
        *operators.OPTIONALS,
        *KUBERNETES_ROWS,
        *NAMED_FORMATS,
        *NETWORK,
        *operators.TIMES,
    )
)
"""Overloads, by function name and whether the function has a receiver."""
