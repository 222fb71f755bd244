"""Named string formats (apiserver/pkg/cel/library/format.go)."""

import re
from typing import Final

from koord_numa.core.cel.standard_library.costs import traversal
from koord_numa.core.cel.values.functions import Overload, row
from koord_numa.core.cel.values.values import NONE, NamedFormat, OptionalValue

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
    """None when the text has the format, else what is wrong with it."""
    pattern, longest = _COMPILED[kind.name]
    # The length first, as it bounds what the pattern has to look at.
    if len(text) > longest:
        return OptionalValue(True, (f"must be no more than {longest} characters",))
    return NONE if pattern.fullmatch(text) else OptionalValue(True, (f"must be a valid {kind.name}",))


def _named(name: str) -> OptionalValue:
    return OptionalValue(True, NamedFormat(name)) if name in _PATTERNS else NONE


def _constant(name: str) -> Overload:
    return row(f"format.{name}() -> format", lambda: NamedFormat(name))


ROWS: Final = (
    *map(_constant, _PATTERNS),
    row("format.named(string) -> optional(format)", _named),
    row("format.validate(string) -> optional(list(string))", _validate, lambda _, text: traversal(text) * 8),
)
