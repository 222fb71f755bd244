"""An expression is charged before it runs: CPU time and memory are bounded by the charges, whatever the text."""

import sys
import tracemalloc
from collections.abc import Callable
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.cel.program import CACHE, CelDevice, ProgramCache, compile_selector
from koord_numa.core.cel.runtime import LIMITS, Frame
from koord_numa.core.cel.values import (
    CelError,
    CostExceededError,
    EvaluationError,
    MapValue,
    OptionalValue,
    Uint,
    ValueTooLargeError,
    identity,
    same,
)
from koord_numa.core.claims.inventory import Device
from koord_numa.core.claims.pools import SELECTOR_LIMITS, SelectorBudget, Selectors
from koord_numa.core.objects.claims import DeviceId
from tests.tables import each_row

DEVICE = CelDevice("gpu.example.com", attributes=MapValue({"d": MapValue({"a": "x" * 64, "n": 1})}))


def nested(depth: int, tail: str, first: str = "[1,1]") -> str:
    """A list of 2^depth leaves, made of ``depth`` pairs."""
    pairs = "".join(f"[[a{i - 1},a{i - 1}]].exists(a{i}, " for i in range(1, depth))
    return f"[{first}].exists(a0, {pairs}{tail}{')' * depth}"


def doubled(times: int, tail: str, first: str = '"0123456789"') -> str:
    """A text that is doubled again and again."""
    steps = "".join(f"cel.bind(t{i}, t{i - 1} + t{i - 1}, " for i in range(1, times))
    return f"cel.bind(t0, {first}, {steps}{tail}{')' * times}"


def wide(clauses: int, argument: str) -> str:
    return '"' + "%s" * clauses + '".format([' + ",".join([argument] * clauses) + "])"


BOMBS = {
    "format of a nested list": nested(26, '"%s".format([a25]).size() > 3'),
    "format of formats": f"cel.bind(a, {wide(300, chr(34) + 'x' + chr(34))}, cel.bind(b, {wide(300, 'a')}, "
    f"cel.bind(c, {wide(300, 'b')}, c.size() > 5)))",
    "equality of nested lists": nested(26, "a25 == [a24, a24]"),
    "inequality of nested lists": nested(26, "a25 != [a24, a24]"),
    "membership of nested lists": nested(26, "a25 in [a25]"),
    "nested lists without leaves": nested(26, "a25 == [a24, a24]", first="[]"),
    "includes": nested(26, "a25.includes(a24)"),
    "indexOf of nested lists": nested(26, "a25.indexOf(a24) > 0"),
    "distinct of nested lists": nested(26, "a25.distinct().size() > 0"),
    "sets of nested lists": nested(26, "sets.equivalent(a25, a25)"),
    "flatten of nested lists": nested(26, "a25.flatten(30).size() > 3"),
    "nested maps": "cel.bind(m0, {'k': 1}, "
    + "".join(f"cel.bind(m{i}, {{'a': m{i - 1}, 'b': m{i - 1}}}, " for i in range(1, 26))
    + "m25 == m25"
    + ")" * 26,
    "nested optionals": "cel.bind(o0, optional.of(1), "
    + "".join(f"cel.bind(o{i}, optional.of([o{i - 1}, o{i - 1}]), " for i in range(1, 26))
    + "o25 == o25"
    + ")" * 26,
    "a long range": "lists.range(100001).size() > 0",
    "a range of ranges": "lists.range(400).map(x, lists.range(400)).size() > 0",
    "a text that doubles": doubled(40, "t39.size() > 0"),
    "a list that doubles": doubled(40, "t39.size() > 0", first="[1, 2]"),
    "bytes that double": doubled(40, "t39.size() > 0", first='b"0123456789"'),
    "replace by a long text": doubled(14, 't13.replace("0", t13).size() > 0'),
    "replace of nothing": doubled(14, 't13.replace("", t13).size() > 0'),
    "join by a long text": doubled(14, "lists.range(10000).map(x, 'a').join(t13).size() > 0"),
    "split into characters": doubled(15, 't14.split("").size() > 0'),
    "findAll": doubled(14, 't13.findAll("0.*z|0").size() > 0'),
    "matches": doubled(16, 't15.matches("(" + t9 + ")*") '),
    "a dynamic pattern": doubled(16, "t15.matches(t15)"),
    "sort of long texts": doubled(13, "lists.range(2000).map(x, t12 + string(x)).sort().size() > 0"),
    "comparisons of long versions": doubled(
        12,
        "cel.bind(v, semver('1.0.0-' + t11), lists.range(1000).all(x, !semver('1.0.0').isLessThan(v) && v.compareTo(v) == 0))",
        first="'abcdefghij'",
    ),
    "loops": "lists.range(300).all(a, lists.range(300).all(b, lists.range(300).all(c, true)))",
    "a pattern of many instructions": doubled(16, "t15.matches('(a|b)*a(a|b){900}c') ", first="'abbabab'"),
    "many durations": doubled(17, "duration(t16) > duration('1s')", first="'1ns2us'"),
    "many addresses": "lists.range(20000).all(x, cidr('2001:db8::/32').containsCIDR('2001:db8:1::/48'))",
    "entries of maps": "lists.range(1000).transformMapEntry(i, v, {string(i): lists.range(1000)}).size() > 0",
}


@each_row("source", BOMBS.values(), ids=BOMBS)
def test_expensive_expressions_end_at_a_limit(source: str) -> None:
    assert len(source) <= 10 * 1024, "the API server refuses longer texts"
    program = compile_selector(source)
    with pytest.raises(CostExceededError):
        program.run(DEVICE)


@each_row(
    "source",
    [
        "lists.range(20000).sortBy(x, -x)[0] == 19999",
        "lists.range(900).map(x, x % 7).distinct().size() == 7",
        "sets.contains(lists.range(900), lists.range(800))",
        "sets.equivalent([dyn(1), dyn(1.0), dyn(1u)], [1])",
        "!sets.intersects([1, 2], ['a'].map(x, dyn(x)))",
        "[[1, 2], [1, 2], [2, 1]].distinct() == [[1, 2], [2, 1]]",
        "'abcabc'.lastIndexOf('abc') == 3 && 'abcabc'.lastIndexOf('abc', 2) == 0 && 'a'.lastIndexOf('b') == -1",
        "lists.range(1000).map(x, string(x)).join(',').size() == 3889",
        "!(double('NaN') in [1.0]) && [double('NaN'), double('NaN')].distinct().size() == 2",
        "[true, false, true].distinct().size() == 2 && !(dyn(1) in [true])",
    ],
)
def test_large_but_bounded_expressions_are_evaluated(source: str) -> None:
    assert compile_selector(source).matches(DEVICE)


def test_a_deadline_of_cpu_time_ends_an_evaluation() -> None:
    seconds = iter(range(10_000))

    def clock() -> float:
        return float(next(seconds))

    program = compile_selector("lists.range(50000).all(x, x >= 0)")
    with pytest.raises(CostExceededError, match="CPU time"):
        program.run(DEVICE, program.frame_for(DEVICE, clock))


def test_an_evaluation_without_time_costs_the_whole_limit() -> None:
    program = compile_selector("lists.range(50000).all(x, x >= 0)")
    frame = program.frame_for(DEVICE, iter(range(10_000)).__next__)
    with pytest.raises(CostExceededError, match="CPU time"):
        program.run(DEVICE, frame)
    assert frame.work == LIMITS.work


def test_a_negative_range_gives_no_units_back() -> None:
    budget = SelectorBudget("claim")
    device = Device(DeviceId("d", "pool", "0"), {}, DEVICE)
    assert Selectors(budget).answer(device, "cel.bind(n, -900000000000, lists.range(n).size() == 0)") is True
    assert budget.left < SELECTOR_LIMITS.claim


def test_a_kept_error_holds_no_values_of_the_evaluation() -> None:
    source = f"cel.bind(a, lists.range(3000).map(x, string(x) + '{'x' * 50}'), {{'a': 1}}['%s'.format([a])] == 1)"
    device = Device(DeviceId("d", "pool", "0"), {}, DEVICE)
    compile_selector(source)
    tracemalloc.start()
    error = Selectors().answer(device, source)
    held, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert isinstance(error, EvaluationError)
    assert str(error).startswith("no such key: [0xxx")
    assert held < 100 << 10 < 500 << 10 < peak


def test_lists_with_equal_python_hashes_differ_in_identity() -> None:
    # Both lists have the same hash as tuples of Python 3.8 and later, in every process.
    left, right = (17, 72), (888598, -1019903586941815585)
    assert hash(left) == hash(right)
    assert hash(identity(left)) != hash(identity(right))


@pytest.mark.parametrize("index", ["double('NaN')", "double('Infinity')", "-double('Infinity')"])
def test_an_index_that_is_no_number_is_an_error_of_ours(index: str) -> None:
    for text in (f"[1][dyn({index})] == 1", f"[1][?dyn({index})].hasValue()", f"[1][dyn({index})] == 1 || false"):
        with pytest.raises(EvaluationError):
            compile_selector(text).matches(DEVICE)
    assert compile_selector(f"[1][dyn({index})] == 1 || true").matches(DEVICE)


def test_a_text_that_cannot_be_encoded_is_an_error_of_ours() -> None:
    for text in ("bytes(dyn('\ud800')).size() > 0", "'a\ud800'.matches('a')"):
        with pytest.raises(EvaluationError):
            compile_selector(text).matches(DEVICE)


def test_no_operator_absorbs_a_value_that_is_too_large() -> None:
    with pytest.raises(ValueTooLargeError):
        compile_selector("lists.range(100001).size() > 0 || true").matches(DEVICE)


def test_a_program_holds_no_large_constants() -> None:
    tracemalloc.start()
    compile_selector(" && ".join(f"lists.range(90000).size() > {at}" for at in range(5)))
    held, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert held < 4 << 20


def test_compiled_programs_are_bounded_by_text_size() -> None:
    cache = ProgramCache(characters=1000)
    for at in range(100):
        cache.get(f"{at} > 0 && {'1 + ' * 20}1 > 0")
    assert 0 < len(cache) <= 20
    assert f"99 > 0 && {'1 + ' * 20}1 > 0" in cache
    assert len(CACHE) > 0


# Random expressions: lists, texts and maps that are built of each other, and the functions that read them whole.

Grow = Callable[[str], str]
LISTS: tuple[Grow, ...] = (
    lambda x: f"[{x}, {x}]",
    lambda x: f"({x} + {x})",
    lambda x: f"{x}.map(v, {x})",
    lambda x: f"{x}.map(v, [v, v])",
    lambda x: f"{x}.filter(v, v in {x})",
    lambda x: f"{x}.sortBy(v, {x}.size())",
    lambda x: f"{x}.distinct()",
    lambda x: f"{x}.reverse()",
    lambda x: f"{x}.map(v, {x}.indexOf(v))",
    lambda x: f'["%s %s".format([{x}, {x}])]',
    lambda x: f'["%s".format([{x}])].map(t, t.replace("1", t))',
    lambda x: f'["%s".format([{x}])].map(t, t.split(""))',
    lambda x: f'["%s".format([{x}])].map(t, t.findAll("[0-9]*"))',
    lambda x: f"[{{'a': {x}, 'b': {x}}}]",
    lambda x: f"lists.range({x}.size() * 37 + 1)",
    lambda x: f"[optional.of({x})]",
    lambda x: f"[{x} == {x}]",
)
QUESTIONS: tuple[Grow, ...] = (
    lambda x: f"{x}.size() > 0",
    lambda x: f"{x} == {x}",
    lambda x: f"{x} in [{x}]",
    lambda x: f"{x}.exists(v, v in {x})",
    lambda x: f"sets.equivalent({x}, {x})",
    lambda x: f'"%s".format([{x}]).size() > 0',
    lambda x: f'"%s".format([{x}]).matches("([0-9]+,)*x")',
)


@st.composite
def expressions(draw: st.DrawFn) -> str:
    """Each step binds a variable to a value that is made of the one before."""
    steps = draw(st.lists(st.sampled_from(LISTS), min_size=1, max_size=14))
    text = "".join(f"cel.bind(x{at + 1}, dyn({grow(f'x{at}')}), " for at, grow in enumerate(steps))
    question = draw(st.sampled_from(QUESTIONS))(f"x{len(steps)}")
    return f"cel.bind(x0, dyn([1, 2, 3]), {text}{question}{')' * len(steps)})"


CALLS_PER_UNIT = 40
"""Function calls, of Python or C, that a unit may take. Without charges the same expressions take millions of calls."""


@given(expressions())
def test_calls_and_memory_are_bounded_by_the_charges(source: str) -> None:
    try:
        program = compile_selector(source)
    except CelError:
        return
    frame = program.frame_for(DEVICE)
    calls = 0

    def count(_frame: object, event: str, _argument: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    former = sys.getprofile()
    tracemalloc.start()
    sys.setprofile(count)
    with suppress(CelError):
        program.run(DEVICE, frame)
    sys.setprofile(former)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert calls <= CALLS_PER_UNIT * frame.units + 1000
    assert peak <= 128 << 20


VALUES = st.recursive(
    st.one_of(
        st.booleans(), st.integers(-2, 2), st.integers(0, 2).map(Uint), st.sampled_from([0.0, 1.0, -1.0, float("nan")]),
        st.sampled_from(["", "a", "1"]), st.sampled_from([b"", b"a"]), st.none(),
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3).map(tuple),
        st.dictionaries(st.one_of(st.booleans(), st.integers(0, 1), st.sampled_from(["a", "b"])), inner, max_size=3).map(MapValue),
        inner.map(lambda value: OptionalValue(True, value)),
    ),
    max_leaves=6,
)  # fmt: skip


@given(VALUES, VALUES)
def test_values_have_equal_identities_exactly_if_equal(left: object, right: object) -> None:
    assert (identity(left) == identity(right)) == same(left, right)


@given(VALUES)
def test_the_size_of_a_value_counts_every_part(value: object) -> None:
    def count(part: object) -> int:
        if isinstance(part, tuple):
            return 1 + sum(map(count, part))
        if isinstance(part, MapValue):
            return 1 + sum(count(key) + count(item) for key, item in part.items())
        return count(part.value) if isinstance(part, OptionalValue) and part.present else 1

    assert Frame(DEVICE, 0).size(value).nodes == count(value)
