"""Value objects are compared, hashed and replaced by their fields, and have no room for others."""

from dataclasses import field, replace

import pytest

from koord_numa.core.value_objects import value_object


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


def test_there_is_no_room_for_other_fields() -> None:
    with pytest.raises(AttributeError):
        setattr(Point(1), "z", 3)  # noqa: B010  (mypy would refuse the assignment)
