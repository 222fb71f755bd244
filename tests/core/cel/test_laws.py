"""Laws of selectors: nothing but the three errors leaves them, whatever the text, and answers do not change."""

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cel.program import CelDevice, compile_selector
from koord_numa.core.cel.values import EMPTY_MAP, CelError, MapValue, parse_semver

DEVICE = CelDevice("d", attributes=MapValue({"d": MapValue({"a": "x", "n": 1})}, default=EMPTY_MAP))
ATOMS = st.sampled_from(
    [
        "true",
        "1",
        "-2",
        "1u",
        "1.5",
        '"x"',
        "null",
        "device",
        "x",
        "device.attributes",
        'device.attributes["d"].a',
        "[1, 2]",
        '{"a": 1}',
    ]
)
OPERATORS = st.sampled_from(
    ["&&", "||", "==", "!=", "<", "+", "-", "*", "/", "%", "in", ".", "?", ":", "[", "]", "(", ")", ",", ".?"]
)
WORDS = st.sampled_from(
    ["all", "exists", "map", "size()", "orValue(1)", "has", "matches", "quantity", "semver", "min()", "optMap", "x"]
)


def _outcome(text: str) -> str:
    try:
        return str(compile_selector(text).matches(DEVICE))
    except CelError as error:
        return f"error: {error}"


@given(st.lists(st.one_of(ATOMS, OPERATORS, WORDS), max_size=14).map(" ".join))
def test_any_row_of_words_gives_an_answer_or_an_error_of_ours(text: str) -> None:
    assert _outcome(text) == _outcome(text)


@given(st.text(max_size=40))
def test_any_text_gives_an_answer_or_an_error_of_ours(text: str) -> None:
    assert _outcome(text) == _outcome(text)


NUMBERS = st.integers(0, 3)
VERSIONS = st.builds(
    lambda a, b, c, pre: f"{a}.{b}.{c}" + (f"-{pre}" if pre else ""),
    NUMBERS, NUMBERS, NUMBERS, st.sampled_from(["", "rc.1", "rc.2", "rc.10", "rc", "alpha", "1", "1.a"]),
)  # fmt: skip


@given(VERSIONS, VERSIONS, VERSIONS)
def test_versions_have_one_order(a: str, b: str, c: str) -> None:
    x, y, z = map(parse_semver, (a, b, c))
    assert (x < y) + (x == y) + (x > y) == 1
    assert not (x < y and y < z) or x < z
