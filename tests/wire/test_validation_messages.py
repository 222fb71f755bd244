"""Mistakes in objects and files are said in plain words: the key as it is written, what is there, and what may be there."""

from enum import Enum
from typing import Annotated, Any, Literal

import pytest
from msgspec import Meta
from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from koord_numa.core.value_objects import value_field
from koord_numa.wire.errors import FieldPath, WireError, sentence_of
from koord_numa.wire.parsing import Count, GoJson, Quantity, Strict, Weight, read
from tests.tables import each_row


class Colour(Enum):
    RED = "red"
    BLUE = "blue"


class Inner(GoJson):
    """Names match without regard to case."""

    size: Count = 1


class Outer(Strict):
    text: str = ""
    weight: Weight = 1
    yes: bool = False
    ratio: float = 1.0
    amount: Quantity = 0
    word: str | bool = ""
    labels: dict[str, str] = value_field(default_factory=dict)
    inner: list[Inner] = value_field(default_factory=list)
    either: str | Inner | None = None
    spelled: Annotated[str, Meta(min_length=2)] = value_field(default="ab", name="spelledName")


class NeedsName(Strict, kw_only=True):
    size: Count = 1
    name: str


class OfPydantic(BaseModel):
    """A model of the settings or of the files of the sandbox."""

    model_config = ConfigDict(strict=True)

    text: str = ""
    weight: Annotated[int, Field(ge=1, le=100)] = 1
    yes: bool = False
    ratio: float = 1.0
    above: Annotated[int, Field(gt=3, lt=9)] = 5
    amount: Quantity = 0
    word: str | bool = ""
    colour: Annotated[Colour, Field(strict=False)] = Colour.RED
    kind: Literal["a", "b"] = "a"
    labels: dict[str, str] = Field({})
    pair: Annotated[tuple[int, int], Field(strict=False)] = (1, 2)
    few: list[int] = Field([1], max_length=2, min_length=1)
    short: Annotated[str, Field(max_length=2, pattern="^[a-z]+$")] = "a"
    own: str = ""
    finite: Annotated[float, Field(allow_inf_nan=False)] = 0.0

    @field_validator("own")
    @classmethod
    def _checked(cls, value: str) -> str:
        if value:
            raise ValueError("No name is allowed")
        return value


MISTAKES: dict[str, tuple[Any, str]] = {
    "whole": ([], "a list of 0 is not an object"),
    "text": ({"text": 1}, "text: 1 is not a text"),
    "low": ({"weight": 0}, "weight: 0 is below 1, the least that is allowed"),
    "high": ({"weight": 101}, "weight: 101 is above 100, the most that is allowed"),
    "fraction": ({"weight": 1.5}, "weight: 1.5 is not a whole number"),
    "truth": ({"weight": True}, "weight: true is not a whole number"),
    "boolean": ({"yes": "on"}, 'yes: "on" is neither true nor false'),
    "number": ({"ratio": "2"}, 'ratio: "2" is not a number'),
    "union": ({"amount": []}, "amount: a list of 0 is neither a text nor a number"),
    "other union": ({"word": 3}, "word: 3 is neither a text nor a boolean"),
    "capital key": ({"labels": {"Zone": 3}}, "labels.Zone: 3 is not a text"),
    "key like a type": ({"labels": {"str": 3}}, "labels.str: 3 is not a text"),
}
"""Messages that are the same for objects of the API and for files."""

MISTAKES_IN_OBJECTS: dict[str, tuple[Any, str]] = {
    "any case": ({"inner": [{"SIZE": 0}]}, "inner[0].size: 0 is below 1, the least that is allowed"),
    "no object": ({"inner": [{}, 3]}, "inner[1]: 3 is not an object"),
    "no list": ({"inner": {}}, "inner: an object of 0 fields is not a list"),
    "null": ({"text": None}, "text: null is not a text"),
    "number as key": ({"labels": {3: "a"}}, "labels[3]: 3 is not a text"),
    "number as unknown key": ({3: "a"}, "[3]: 3 is not a text"),
    "half a surrogate pair": ({"text": 3, "word": "\ud800"}, "text: 3 is not a text"),
    "text or object": ({"either": 3}, "either: 3 is neither a text nor an object"),
    "within either": ({"either": {"SIZE": "x"}}, 'either.size: "x" is not a whole number'),
    "short": ({"spelledName": "a"}, 'spelledName: "a" is too short, at least 2 are needed'),
    "too large for a number": ({"ratio": 10**400}, "ratio: an integer of 1329 bits is too large"),
}

MISTAKES_IN_FILES: dict[str, tuple[Any, str]] = {
    "bounds": ({"above": 3}, "above: 3 is not above 3"),
    "upper bound": ({"above": 9}, "above: 9 is not below 9"),
    "infinite": ({"finite": float("inf")}, "finite: inf is not a finite number"),
    "enumeration": ({"colour": "green"}, 'colour: "green" is none of red, blue'),
    "literal": ({"kind": "c"}, 'kind: "c" is none of a, b'),
    "missing item": ({"pair": [1]}, "pair[1]: is missing"),
    "few": ({"few": []}, "few: a list of 0 is too short, at least 1 are needed"),
    "many": ({"few": [1, 2, 3]}, "few: a list of 3 is too long, at most 2 are allowed"),
    "long": ({"short": "abc"}, 'short: "abc" is too long, at most 2 are allowed'),
    "pattern": ({"short": "A"}, 'short: "A" does not match ^[a-z]+$'),
    "own words": ({"own": "x"}, 'own: "x": no name is allowed'),
}


@each_row(
    ("value", "message"),
    [*MISTAKES.values(), *MISTAKES_IN_OBJECTS.values()],
    ids=[*MISTAKES, *MISTAKES_IN_OBJECTS],
)
def test_mistakes_in_objects_are_said_in_plain_words(value: Any, message: str) -> None:
    with pytest.raises(WireError) as raised:
        read(Outer, value, FieldPath("Thing a"))
    assert str(raised.value) == f"Thing a: {message}"


@each_row(("value", "message"), [*MISTAKES.values(), *MISTAKES_IN_FILES.values()], ids=[*MISTAKES, *MISTAKES_IN_FILES])
def test_mistakes_in_files_are_said_in_plain_words(value: Any, message: str) -> None:
    with pytest.raises(ValidationError) as raised:
        OfPydantic.model_validate(value)
    assert sentence_of(raised.value, value) == message


def test_first_mistake_is_that_of_the_first_field() -> None:
    with pytest.raises(WireError, match="size: 0 is below 1"):
        read(NeedsName, {"size": 0}, FieldPath("Thing a"))
    with pytest.raises(WireError, match="name: is missing"):
        read(NeedsName, {"size": 1}, FieldPath("Thing a"))
