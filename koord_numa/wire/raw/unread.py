"""
API objects of which only the text was received so far.

A list of a hundred thousand pods costs most where whole objects are decoded and a tenth of their fields is looked at. What reads a kind in
one pass takes its text; everything else meets a mapping, which is decoded when it is first asked for a field.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

import msgspec
import orjson

from koord_numa.wire.errors import FieldPath, WireError
from koord_numa.wire.raw import deep_json


class Identity(msgspec.Struct, rename="camel"):
    """By what an object and its state are known again; empty where the object does not say it."""

    uid: str = ""
    resource_version: str = ""


class _Identified(msgspec.Struct):
    metadata: Identity


class UnreadObject(Mapping[str, Any]):
    """
    One object as the API server wrote it.

    As a mapping it raises nothing, and a text that is no JSON object has no fields: parsers look up the identity of objects that they
    have failed to read. ``fields`` raises.
    """

    __slots__ = ("_fields", "text")

    def __init__(self, text: bytes | msgspec.Raw) -> None:
        self.text: Final = text
        self._fields: dict[str, Any] | None = None

    @property
    def fields(self) -> dict[str, Any]:
        """The whole object. Raises ``WireError`` where the text is no JSON object."""
        if self._fields is None:
            self._fields = _decoded(self.text)
        return self._fields

    @property
    def identity(self) -> Identity:
        """Read without the rest of the object."""
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
        """There is one, whatever its fields: by default Python would ask for their number, which decodes them."""
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
            found = deep_json.loads(bytes(text))
        except ValueError:
            raise FieldPath("an object").error(f"is not JSON: {error.msg}") from None
    if not isinstance(found, dict):
        raise FieldPath("an object").error("is not a JSON object")
    return found


_IDENTIFIED: Final = msgspec.json.Decoder(_Identified)
_NOBODY: Final = Identity()
