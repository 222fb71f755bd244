"""
Documents of ``/api/v1`` as JSON-compatible values, shared by the page, ``-o json`` of the command line, and files.

CPUs are CPU lists (``0-3,8``) or lists of ids. CPU counts are whole or decimal CPUs, memory is in bytes, other
resources are counts. Within a version, fields may be added but not removed or redefined. ``docs/api.md`` describes
every field.
"""

from typing import Any, Final, TypeAlias

API_VERSION: Final = "view.koord-numa.io/v1"

Document: TypeAlias = dict[str, Any]


def document(kind: str, **fields: Any) -> Document:
    """Return a document that starts with its version and kind."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}
