"""
The documents of ``/api/v1``: plain values ready for JSON, the same for the page, the command line's ``-o json`` and files.

CPUs are cpu lists (``0-3,8``) or lists of ids, CPU counts are whole or decimal CPUs, memory is bytes, other resources are counts.
Fields are added within a version and neither removed nor given another meaning; ``docs/api.md`` has every field.
"""

from typing import Any, Final, TypeAlias

API_VERSION: Final = "view.koord-numa.io/v1"

Document: TypeAlias = dict[str, Any]


def document(kind: str, **fields: Any) -> Document:
    """A document with its kind and version first."""
    return {"apiVersion": API_VERSION, "kind": kind, **fields}
