"""Value objects are compared, hashed and replaced by their fields, and have no room for others; those without cycles are not visited."""

import importlib
import pkgutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, is_dataclass
from dataclasses import replace as replaced_by_name
from enum import Enum
from types import NoneType
from typing import Any, get_args, get_origin, get_type_hints

import pytest

import koord_numa.core
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import ValueObject, replace, value_field, value_object


@value_object
class Point:
    """An example."""

    x: int
    y: int = 0
    tags: tuple[str, ...] = field(default=(), compare=False)


class Line(ValueObject):
    """An example of the other kind."""

    x: int
    y: int = 0
    tags: dict[str, int] = value_field(default_factory=dict)


def test_structs_are_compared_by_fields_and_changed_in_copies() -> None:
    line = Line(1)
    assert Line(1, 0, {}) == line != Line(1, 1)
    assert replace(line, y=5) == Line(1, 5)
    assert line.y == 0
    assert hash(Line(1, 2, tags=())) == hash(Line(1, 2, tags=()))  # type: ignore[arg-type]  # a mapping has no hash
    with pytest.raises(TypeError):
        replace(line, z=1)  # type: ignore[call-arg]  # what is no field
    for name in ("y", "z"):
        with pytest.raises(AttributeError):
            setattr(line, name, 3)


def structs() -> Iterator[type[ValueObject]]:
    """Every class of the core that is made so."""
    for module in pkgutil.walk_packages(koord_numa.core.__path__, "koord_numa.core."):
        importlib.import_module(module.name)
    todo = [ValueObject]
    while todo:
        found = todo.pop().__subclasses__()
        yield from (cls for cls in found if cls.__module__.startswith("koord_numa.core."))
        todo += found


def refers_to(hint: Any) -> Iterator[Any]:
    """The classes of values that may be in a field of this type, inside of tuples and mappings too."""
    arguments = get_args(hint)
    if arguments and get_origin(hint) is not Callable:
        for argument in arguments:
            yield from refers_to(argument)
    elif hint is not Ellipsis:
        yield hint


def may_be_in_a_cycle(cls: Any) -> bool:
    """Return true if a value of this class can refer to a value that is filled in later, and so to itself."""
    if cls in (int, float, str, bool, NoneType, PodRequest):
        return False  # what is remembered of a request follows from the request alone: it knows no pod
    if not isinstance(cls, type) or issubclass(cls, Enum):
        return not isinstance(cls, type)
    if issubclass(cls, (ValueObject, tuple)) or (is_dataclass(cls) and cls.__setattr__ is not object.__setattr__):
        return any(may_be_in_a_cycle(each) for hint in get_type_hints(cls).values() for each in refers_to(hint))
    return True


def test_structs_without_gc_are_not_part_of_a_cycle() -> None:
    unvisited = [cls for cls in structs() if not cls.__struct_config__.gc]
    assert len(unvisited) > 20
    assert [cls for cls in unvisited if may_be_in_a_cycle(cls)] == []


def test_equal_fields_are_equal_objects() -> None:
    assert Point(1, 2) == Point(1, 2, ("a",)) != Point(2, 1)
    assert len({Point(1, 2), Point(1, 2), Point(1, 3)}) == 2


def test_a_changed_copy_leaves_the_original_alone() -> None:
    point = Point(1)
    assert replace(point, y=5) == Point(1, 5)
    assert point == Point(1)


@dataclass(frozen=True, slots=True)
class Square:
    """One field of the constructor, and what follows from it."""

    side: int
    area: int = field(init=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "area", self.side**2)


def test_a_changed_copy_is_what_the_standard_library_makes() -> None:
    point = Point(1, 2, ("a",))
    assert replace(point, tags=("b",), x=3).tags == replaced_by_name(point, tags=("b",), x=3).tags == ("b",)
    assert replace(Square(2), side=3) == replaced_by_name(Square(2), side=3) == Square(3)
    assert replace(Square(3), side=3).area == 9
    with pytest.raises(KeyError):
        replace(point, z=1)  # type: ignore[call-arg]  # what is no field


def test_there_is_no_room_for_other_fields() -> None:
    with pytest.raises(AttributeError):
        setattr(Point(1), "z", 3)  # noqa: B010  (mypy would refuse the assignment)
