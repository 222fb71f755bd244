"""API objects as JSON text before parsing, and a decoder for JSON that is nested too deeply for the fast decoder."""

import json
import re
from collections.abc import Iterator, Mapping
from enum import Enum
from json.decoder import scanstring  # type: ignore[attr-defined]  # missing in typeshed; used by json itself
from typing import Any, Final

import msgspec
import orjson

from koord_numa.wire.errors import FieldPath, WireError

_STEP: Final = re.compile(
    r"""\.(?P<field>(?:\\.|[^.\[\\])+)          # .field, with \. for a dot inside
      | \[(?P<index>-?\d+)\]                    # [0]
      | \[['"](?P<quoted>[^'"]+)['"]\]          # ['field']
      | \[(?P<all>\*)\] | \.\*
      | \[\?\(@(?P<path>[^=<>!\]]+)\s*==\s*['"]?(?P<value>[^'")]*)['"]?\)\]""",
    re.VERBOSE,
)


def find(document: Any, path: str) -> list[Any]:
    """
    Return all values at a path such as ``.status.conditions[?(@.type=="Ready")].status``.

    Empty for a path that cannot be parsed.
    """
    values = [document]
    position = 0
    text = path.strip().removeprefix("{").removesuffix("}").removeprefix("$")
    while position < len(text):
        step = _STEP.match(text, position)
        if step is None:
            return []
        values = [found for value in values for found in _follow(value, step)]
        position = step.end()
    return values


def _follow(value: Any, step: re.Match[str]) -> Iterator[Any]:
    name = step["field"] or step["quoted"]
    if name is not None and name != "*":
        name = re.sub(r"\\(.)", r"\1", name)
        if isinstance(value, dict) and value.get(name) is not None:
            yield value[name]
    elif step["index"] is not None:
        if isinstance(value, list) and -len(value) <= int(step["index"]) < len(value):
            yield value[int(step["index"])]
    elif step["path"] is not None:
        for item in value if isinstance(value, list) else ():
            if any(str(found) == step["value"] for found in find(item, step["path"].strip())):
                yield item
    else:
        yield from value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()


_SPACE: Final = re.compile(r"[ \t\n\r]*")
_NO_NUMBER: Final = re.compile(r"NaN|-?Infinity", re.ASCII)
_SCALAR: Final = re.compile(r"true|false|null|-?(?:0|[1-9]\d*)(?:\.\d+)?(?:[eE][+-]?\d+)?", re.ASCII)


class _Next(Enum):
    """The tokens that may come next."""

    VALUE = 1  # a value, or a key of an object
    VALUE_OR_END = 2  # the same, or the closing bracket
    COMMA_OR_END = 3


def loads(raw: bytes) -> Any:
    """
    Return the value of a JSON text of any depth. Raises ``ValueError``.

    ``NaN`` and ``Infinity``, which are not JSON but are written by some encoders, become strings, which parsers of
    objects reject by name.
    """
    return _Decoder(raw.decode()).decode()


class _Decoder:
    def __init__(self, text: str) -> None:
        self._text = text
        self._at = 0
        # An explicit stack: a recursion would reach Python's limit at a depth that the API server accepts.
        self._open: list[tuple[Any, str]] = [([], "")]  # open containers with their closing brackets, outermost first
        self._key: str | None = None
        self._next = _Next.VALUE

    def decode(self) -> Any:
        """Return the whole text as one value."""
        self._skip_space()
        while self._at < len(self._text):
            self._token(self._text[self._at])
            self._skip_space()
        (top, _), *inner = self._open
        if inner or len(top) != 1 or self._next is not _Next.COMMA_OR_END:
            raise ValueError("the text ends too early, or too late")
        return top[0]

    def _token(self, char: str) -> None:
        # Only inside a container: a comma at the top level separates nothing.
        if char == "," and self._next is _Next.COMMA_OR_END and len(self._open) > 1:
            self._at += 1
            self._next = _Next.VALUE
        elif char == self._open[-1][1] and self._next is not _Next.VALUE:
            self._at += 1
            self._open.pop()
            self._next = _Next.COMMA_OR_END
        elif self._next is _Next.COMMA_OR_END:
            raise ValueError(f"a value too many at {self._at}")
        # In an object a key comes before each value.
        elif self._key is None and isinstance(self._open[-1][0], dict):
            self._read_key(char)
        elif char in "{[":
            self._at += 1
            made: Any = {} if char == "{" else []
            self._put(made)
            self._open.append((made, "}" if char == "{" else "]"))
            self._next = _Next.VALUE_OR_END
        else:
            self._put(self._scalar(char))

    def _read_key(self, char: str) -> None:
        if char != '"':
            raise ValueError(f"no key at {self._at}")
        # ``scanstring`` of the standard library handles escapes as json does.
        self._key, self._at = scanstring(self._text, self._at + 1, True)
        self._skip_space()
        if self._text[self._at : self._at + 1] != ":":
            raise ValueError(f"no colon at {self._at}")
        self._at += 1
        self._next = _Next.VALUE

    def _scalar(self, char: str) -> Any:
        if char == '"':
            value, self._at = scanstring(self._text, self._at + 1, True)
            return value
        found = _SCALAR.match(self._text, self._at)
        if found is None and (found := _NO_NUMBER.match(self._text, self._at)) is not None:
            self._at = found.end()
            return found[0]
        if found is None:
            raise ValueError(f"no value at {self._at}")
        self._at = found.end()
        return json.loads(found[0])

    def _put(self, value: Any) -> None:
        inside = self._open[-1][0]
        if isinstance(inside, list):
            inside.append(value)
        else:
            inside[self._key] = value
        self._key = None
        self._next = _Next.COMMA_OR_END

    def _skip_space(self) -> None:
        found = _SPACE.match(self._text, self._at)
        self._at = self._at if found is None else found.end()


class Identity(msgspec.Struct, rename="camel"):
    """The identity and version of an object. Empty where absent."""

    uid: str = ""
    resource_version: str = ""


class _Identified(msgspec.Struct):
    metadata: Identity


class UnreadObject(Mapping[str, Any]):
    """
    An object as text of the API server, decoded on first use.

    As a mapping it raises nothing, and a text that is not a JSON object has no fields: callers read the identity of
    objects after a failed parse. ``fields`` raises.
    """

    __slots__ = ("_fields", "text")

    def __init__(self, text: bytes | msgspec.Raw) -> None:
        self.text: Final = text
        self._fields: dict[str, Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """Return the whole object. Raises ``WireError`` if the text is not a JSON object."""
        if self._fields is None:
            self._fields = _decoded(self.text)
        return self._fields

    @property
    def identity(self) -> Identity:
        """Return the identity without decoding the rest of the object."""
        try:
            return _IDENTIFIED.decode(self.text).metadata
        except (msgspec.MsgspecError, RecursionError, UnicodeError):
            return _NOBODY

    def __getitem__(self, key: str) -> Any:
        return self._readable[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._readable)

    def __len__(self) -> int:
        return len(self._readable)

    def __bool__(self) -> bool:
        """Return true. Python would call ``__len__`` by default, which decodes the fields."""
        return True

    @property
    def _readable(self) -> dict[str, Any]:
        try:
            return self.fields
        except WireError:
            return {}


def _decoded(text: bytes | msgspec.Raw) -> dict[str, Any]:
    try:
        found = orjson.loads(memoryview(text))
    except orjson.JSONDecodeError as error:
        try:
            found = loads(bytes(text))
        except ValueError:
            raise FieldPath("an object").error(f"is not JSON: {error.msg}") from None
    if not isinstance(found, dict):
        raise FieldPath("an object").error("is not a JSON object")
    return found


_IDENTIFIED: Final = msgspec.json.Decoder(_Identified)
_NOBODY: Final = Identity()
