"""
Pages of a list and events of a watch whose objects are left as text for those who read them.

What the server wraps around the objects is decoded here. Where that is not as a server writes it, everything is decoded as any other
answer, so that nothing is refused that was read before.
"""

from collections.abc import Mapping
from typing import Any, Final

import msgspec

from koord_numa.cluster.client import decoded
from koord_numa.cluster.resources import Call
from koord_numa.wire.raw.unread import UnreadObject


class _Page(msgspec.Struct):
    items: list[msgspec.Raw]
    metadata: dict[str, Any] = {}


class _Event(msgspec.Struct):
    type: str
    object: msgspec.Raw


def unread_page(call: Call, raw: bytes) -> Mapping[str, Any]:
    """One page of a list, its items as ``UnreadObject``. Raises ``Invalid`` when it is no JSON."""
    try:
        page = _PAGES.decode(raw)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        found: Mapping[str, Any] = decoded(call, raw)
        return found
    return {"items": [UnreadObject(item) for item in page.items], "metadata": page.metadata}


def unread_event(call: Call, line: bytes) -> Mapping[str, Any]:
    """One event of a watch; of a change the object is an ``UnreadObject``. Raises ``Invalid`` when it is no JSON."""
    try:
        event = _EVENTS.decode(line)
    except (msgspec.MsgspecError, RecursionError, UnicodeError):
        event = None
    if event is None or event.type not in _CHANGES:
        found: Mapping[str, Any] = decoded(call, line)
        return found
    return {"type": event.type, "object": UnreadObject(event.object)}


_PAGES: Final = msgspec.json.Decoder(_Page)
_EVENTS: Final = msgspec.json.Decoder(_Event)
_CHANGES: Final = frozenset({"ADDED", "MODIFIED", "DELETED"})
