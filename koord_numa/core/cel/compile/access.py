"""Reading parts of values at run time: fields, elements, and their optional forms (cel-go interpreter/attributes.go)."""

from typing import Any, Final

from koord_numa.core.cel.compile.frame import CelDevice
from koord_numa.core.cel.errors import NO_SUCH_OVERLOAD, EvaluationError
from koord_numa.core.cel.values.values import MISSING, NONE, MapValue, OptionalValue

DEVICE_NAMES: Final = {
    "driver": "driver",
    "allowMultipleAllocations": "allow_multiple_allocations",
    "attributes": "attributes",
    "capacity": "capacity",
}
"""The attribute of ``CelDevice`` by the name of the field in CEL."""


def select_value(value: Any, field: str) -> Any:
    """``value.field``."""
    if type(value) is MapValue:
        # ``MISSING`` and not ``None``, which is CEL's null and may be a value.
        found = value.find(field)
        if found is not MISSING:
            return found
    elif isinstance(value, CelDevice):
        return getattr(value, DEVICE_NAMES[field])
    elif isinstance(value, OptionalValue):
        return optional_select(value, field)
    raise EvaluationError(f"no such key: {field}")


def optional_select(value: Any, field: str) -> OptionalValue:
    """``value.?field``: none where there is no such field."""
    # Optionals chain: ``a.?b.?c`` is none as soon as one of them is.
    if isinstance(value, OptionalValue):
        return optional_select(value.value, field) if value.present else NONE
    if isinstance(value, CelDevice):
        return OptionalValue(True, getattr(value, DEVICE_NAMES[field]))
    found = value.find(field) if isinstance(value, MapValue) else MISSING
    return NONE if found is MISSING else OptionalValue(True, found)


def test_field(value: Any, field: str) -> bool:
    """``has(value.field)``."""
    # Every field of a device exists; whether it holds anything is asked of the map behind it.
    if isinstance(value, CelDevice):
        return True
    if isinstance(value, MapValue):
        return value.peek(field) is not MISSING
    return optional_select(value, field).present


def index_value(value: Any, key: Any) -> Any:
    """``value[key]`` of a map or a list."""
    if type(value) is MapValue:
        found = value.find(key)
        if found is MISSING:
            raise EvaluationError(f"no such key: {key}")
        return found
    if isinstance(value, tuple):
        at = _position(key)
        if not 0 <= at < len(value):
            raise EvaluationError(f"index out of bounds: {at}")
        return value[at]
    if isinstance(value, OptionalValue):
        return optional_index(value, key)
    raise EvaluationError(NO_SUCH_OVERLOAD)


def optional_index(value: Any, key: Any) -> OptionalValue:
    """``value[?key]``: none where there is no such element."""
    if isinstance(value, OptionalValue):
        return optional_index(value.value, key) if value.present else NONE
    if isinstance(value, MapValue):
        found = value.find(key)
        return NONE if found is MISSING else OptionalValue(True, found)
    if isinstance(value, tuple):
        at = _position(key)
        return OptionalValue(True, value[at]) if 0 <= at < len(value) else NONE
    raise EvaluationError(NO_SUCH_OVERLOAD)


def _position(key: Any) -> int:
    """Whole numbers of every type are positions."""
    # bool is a subclass of int in Python and no number in CEL.
    if isinstance(key, bool) or not isinstance(key, int | float) or key != int(key):
        raise EvaluationError(NO_SUCH_OVERLOAD)
    return int(key)
