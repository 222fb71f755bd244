"""Text that the fast decoder refuses for its depth is read all the same, and nothing that is no JSON passes."""

from random import Random
from typing import Any

import orjson
import pytest

from koord_numa.cluster.client import decoded
from koord_numa.cluster.resources import RESOURCE_CLAIMS, Call
from koord_numa.ports import Invalid
from koord_numa.wire import raw_json
from tests.tables import each_row

CALL = Call("list", RESOURCE_CLAIMS)
DEPTH = 5000


def any_value(dice: Random, depth: int = 0) -> Any:
    """A small value with texts that need escapes."""
    kind = dice.random() if depth < 5 else 1.0
    count = dice.randrange(4)
    if kind < 0.3:
        return {f'k{dice.randrange(9)}"\\{i}': any_value(dice, depth + 1) for i in range(count)}
    if kind < 0.6:
        return [any_value(dice, depth + 1) for _ in range(count)]
    return dice.choice([1, -2.5e3, 'a"b\\é☃', True, None, False, "", 0])


@each_row("seed", range(4))
def test_it_reads_and_refuses_what_the_fast_decoder_does(seed: int) -> None:
    dice = Random(seed)
    for _ in range(500):
        text = bytearray(orjson.dumps(any_value(dice), option=dice.choice([0, orjson.OPT_INDENT_2])))
        for _ in range(dice.randrange(3)):
            text[dice.randrange(len(text))] = dice.choice(b'{}[],:"1 atn')
        assert _read(raw_json.loads, bytes(text)) == _read(orjson.loads, bytes(text))


def _read(loads: Any, text: bytes) -> Any:
    try:
        return loads(text)
    except ValueError:
        return "not JSON"


def test_one_deep_object_does_not_make_a_list_unreadable() -> None:
    """The parameters of a claim's device configuration may be 10 KiB of brackets, and any user may write them."""
    deep = b'{"a":' * DEPTH + b"1" + b"}" * DEPTH
    items = decoded(CALL, b'{"items":[{"metadata":{"name":"good"}},{"spec":' + deep + b"}]}")["items"]
    assert items[0]["metadata"]["name"] == "good"
    value, depth = items[1]["spec"], 0
    while isinstance(value, dict):
        value, depth = value["a"], depth + 1
    assert (value, depth) == (1, DEPTH)


@pytest.mark.parametrize("text", ["NaN", "Infinity", "-Infinity"])
def test_what_is_no_number_is_read_as_text(text: str) -> None:
    """Go writes none of them, and other servers may. Parsers reject the text where they expect a number."""
    assert decoded(CALL, f'{{"items":[{{"a":{text},"b":[{text}, 1]}}]}}'.encode()) == {
        "items": [{"a": text, "b": [text, 1]}]
    }


@each_row("text", [b"nan", b"+Infinity", b"NaN1", b"", b"<html>", b"[" * DEPTH, b"[" * DEPTH + b"}" * DEPTH, b"\xff"])
def test_what_is_no_json_is_an_error(text: bytes) -> None:
    with pytest.raises(Invalid, match="not JSON"):
        decoded(CALL, text)
