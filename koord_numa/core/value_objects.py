"""
Value objects: dataclasses that nothing changes once they are made, for what decisions and events make by the thousand.

The type checker forbids assignments to their fields, in the package, its tests and its benches. ``dataclass(frozen=True)`` forbids them at
run time as well, and pays for it in every constructor, which has to go around its own guard field by field: eight fields take 0.9 us
instead of 0.13 us, a tenth of all CPU time of the scheduler. So classes that are made in a decision or for an event are value objects, and
everything else stays frozen. For the same reason they have a ``replace`` of their own.
"""

from collections.abc import Callable
from dataclasses import dataclass, field, fields
from functools import cache
from operator import attrgetter
from typing import TYPE_CHECKING, Any, TypeVar, dataclass_transform

T = TypeVar("T")


@dataclass_transform(frozen_default=True, field_specifiers=(field,))
def value_object(cls: type[T]) -> type[T]:
    """A dataclass with slots that is compared and hashed by its fields, and whose fields are assigned by the constructor only."""
    return dataclass(slots=True, unsafe_hash=True)(cls)


if TYPE_CHECKING:
    # The type checker knows which fields this one may be given.
    from dataclasses import replace as replace
else:

    def replace(value: T, /, **changes: Any) -> T:
        """
        As ``dataclasses.replace``, which looks at every field by name and takes four times as long. For value objects and other
        dataclasses whose constructor takes its fields by place. Raises ``KeyError`` for what is no field of it.
        """
        cls = value.__class__
        everything, places = _constructor(cls)
        values = list(everything(value))
        for name, new in changes.items():
            values[places[name]] = new
        return cls(*values)


@cache
def _constructor(cls: type) -> tuple[Callable[[object], tuple[Any, ...]], dict[str, int]]:
    """What reads the arguments of a class's constructor from a value, and the place of each by its name."""
    names = [each.name for each in fields(cls) if each.init]
    # Of one name ``attrgetter`` makes no tuple.
    everything = attrgetter(*names) if len(names) > 1 else lambda value: tuple(getattr(value, name) for name in names)
    return everything, {name: place for place, name in enumerate(names)}
