"""What an expression may name: the variable ``device`` with its fields, and the names of types."""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.cel.values.types import ANY, BOOL, INT, NULL, STRING, Type, map_of
from koord_numa.core.cel.values.values import Uint

Scope = Mapping[str, Type]

DEVICE_FIELDS: Final[Mapping[str, Type]] = {
    "driver": STRING,
    "allowMultipleAllocations": BOOL,
    "attributes": map_of(STRING, map_of(STRING, ANY)),
    "capacity": map_of(STRING, map_of(STRING, Type("quantity"))),
}
_TYPE_NAMES: Final = ("int", "uint", "double", "bool", "string", "bytes", "list", "map", "null_type", "type")
GLOBAL_SCOPE: Final[Scope] = {"device": Type("device"), **dict.fromkeys(_TYPE_NAMES, Type("type"))}
LITERALS: Final[Mapping[type, Type]] = {
    bool: BOOL,
    int: INT,
    Uint: Type("uint"),
    float: Type("double"),
    str: STRING,
    bytes: Type("bytes"),
    type(None): NULL,
}
"""The types of literals by the Python type of their value."""
