"""
Views for users: one model of nodes, pods and decisions behind the page, the JSON API, SVG and the terminal.

Commands such as ``version`` import only this module of the package, which imports nothing.
"""

from typing import Any, Final, TypeAlias

__all__ = ["API_VERSION", "Document", "document"]

API_VERSION: Final = "view.koord-numa.io/v1"

Document: TypeAlias = dict[str, Any]


def document(kind: str, **fields: Any) -> Document:
    """Return a document that starts with its version and kind."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}
