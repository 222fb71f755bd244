"""Libraries of Kubernetes: quantities, semantic versions, URLs, IP addresses and CIDRs (apiserver/pkg/cel/library)."""

from ipaddress import IPv6Address, ip_address, ip_interface
from typing import Any, Final
from urllib.parse import SplitResult, parse_qs, urlsplit

from koord_numa.core.cel.functions import parsed, row, traversal
from koord_numa.core.cel.values import (
    INT_MAX,
    INT_MIN,
    NANO,
    Cidr,
    EvaluationError,
    IpAddress,
    MapValue,
    Quantity,
    Semver,
    parse_quantity,
    parse_semver,
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


ROWS: Final = (
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
