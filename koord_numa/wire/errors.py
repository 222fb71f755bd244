"""What is wrong with an object from outside: one error type that names the object, the key and what was found there."""

import json
from typing import Final, NamedTuple

QUOTED: Final = 60
"""So many characters of a found text go into a message: an annotation may be megabytes long."""


class WireError(ValueError):
    """
    An API object is malformed. Prints as one line: object, field, value found, and what is accepted.

    ``Node worker-2: label node.koordinator.sh/numa-topology-policy: "Strict" is none of BestEffort, None, Restricted, SingleNUMANode``
    """

    def __init__(self, subject: str, key: str, message: str) -> None:
        super().__init__(": ".join(part for part in (subject, key, message) if part))
        self.subject = subject
        self.key = key
        self.message = message


class FieldPath(NamedTuple):  # made many times for every object that is read, so it has to be cheap
    """Where a value was found: in which object (``Pod default/web``), under which key (``annotation …``)."""

    subject: str
    key: str = ""

    @classmethod
    def of(cls, kind: str, name: object) -> "FieldPath":
        """An object by kind and name; a name that is no text is quoted as what it is."""
        return cls(f"{kind} {_cut(name) if isinstance(name, str) else quoted(name)}")

    def at(self, key: str) -> "FieldPath":
        """A key of the same object."""
        return FieldPath(self.subject, f"{self.key}.{key}" if self.key else key)

    def label(self, name: str) -> "FieldPath":
        """A label of the object."""
        return FieldPath(self.subject, f"label {name}")

    def annotation(self, name: str) -> "FieldPath":
        """An annotation of the object."""
        return FieldPath(self.subject, f"annotation {name}")

    # Keys come from objects too: a label's key may be as long as a message.
    def error(self, message: str) -> WireError:
        """The error to raise about this path."""
        return WireError(self.subject, _cut(self.key, 4 * QUOTED), message)


def quoted(value: object) -> str:
    """A found value as JSON, short enough for a message whatever it is: huge texts, deep nesting, endless integers."""
    match value:
        case None | bool():
            return json.dumps(value)
        case str():
            return json.dumps(_cut(value), ensure_ascii=False)
        case int():
            # Python refuses to print integers of more than 4,300 digits.
            return str(value) if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
        case float():
            return repr(value)
        case list() | tuple():
            return f"a list of {len(value)}"
        case dict():
            return f"an object of {len(value)} fields"
        case _:
            return f"a {type(value).__name__}"


def _cut(text: str, length: int = QUOTED) -> str:
    kept = text if len(text) <= length else text[:length] + "…"
    if kept.isascii():  # as nearly all names
        return kept
    return kept.encode("utf-8", "backslashreplace").decode()  # half a surrogate pair must not break a log
