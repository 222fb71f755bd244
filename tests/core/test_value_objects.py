"""Value objects are compared, hashed and replaced by their fields, and have no room for others."""

from dataclasses import dataclass, field
from dataclasses import replace as replaced_by_name

import pytest

from koord_numa.core.value_objects import replace, value_object


@value_object
class Point:
    """An example."""

    x: int
    y: int = 0
    tags: tuple[str, ...] = field(default=(), compare=False)


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
