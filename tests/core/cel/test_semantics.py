"""Selectors of devices: values, errors, optionals, macros, limits."""

import pytest

from koord_numa.core.cel.program import MAX_TREE_DEPTH, CelDevice, compile_selector
from koord_numa.core.cel.values import (
    EMPTY_MAP,
    CompileError,
    CostExceededError,
    EvaluationError,
    MapValue,
    Quantity,
    Unreadable,
    parse_semver,
)
from tests.tables import each_row

GPU = CelDevice(
    "gpu.example.com",
    attributes=MapValue(
        {
            "gpu.example.com": MapValue(
                {"model": "H100", "index": 2, "nvlink": True, "version": parse_semver("550.54.15")}
            )
        },
        default=EMPTY_MAP,
    ),
    capacity=MapValue({"gpu.example.com": MapValue({"memory": Quantity(80 * 2**30 * 10**9)})}, default=EMPTY_MAP),
)
A = 'device.attributes["gpu.example.com"]'


@each_row(
    "expression",
    [
        f'{A}.model == "H100" && {A}.index % 2 == 0',
        f'{A}.model.matches("^H[0-9]+$")',
        f'{A}.?nosuch.orValue("x") == "x"',
        f'{A}[?"nosuch"].hasValue() == false',
        f"has({A}.model) && !has({A}.nosuch)",
        f'{A}.version.isGreaterThan(semver("535.0.0"))',
        'device.capacity["gpu.example.com"].memory.compareTo(quantity("40Gi")) > 0',
        f'["A100", "H100"].exists(m, m == {A}.model)',
        f"cel.bind(a, {A}, a.index < 3 && a.nvlink)",
        "[3, 1, 2].sortBy(x, -x) == [3, 2, 1]",
        "[[1, 2], [3]].flatten() == [1, 2, 3]",
        "[1, 2, 3].map(x, x > 1, x * 2) == [4, 6]",
        '{"a": 1, "b": 2}.transformList(k, v, v > 1, k) == ["b"]',
        "[1, 2].all(i, v, v == i + 1)",
        "1u + 2u == 3u && 7 / 2 == 3 && -7 / 2 == -3 && -7 % 3 == -1",
        r'"\x41\u0042\103" == "ABC" && r"\d" == "\\d" && b"\xff".size() == 1',
        '"""a"b""" == "a\\"b"',
        '"%d %s %.2f %x".format([3, [1, "a"], 1.5, 255]) == "3 [1, a] 1.50 ff"',
        'timestamp("2024-03-01T00:00:00Z") - timestamp("2024-02-28T00:00:00+01:00") == duration("49h")',
        "{true: 1}[true] == 1 && !(dyn(1) in {true: 1})",
        'string(1.5) == "1.5" && string(1e20) == "100000000000000000000" && double("1e3") == 1000.0',
    ],
)
def test_true(expression: str) -> None:
    assert compile_selector(expression).matches(GPU)


@each_row(
    ("expression", "text"),
    [
        (f"{A}.nosuch", "no such key: nosuch"),
        (f"{A}.model", "could not be converted to bool"),
        (f"{A}.index + 9223372036854775807 > 0", "integer overflow"),
        (f"{A}.index / 0 == 1", "division by zero"),
        (f'{A}.version == "550.54.15"', "no such overload"),
        (f"{A}.model < 3", "no such overload"),
        ("[1, 2][2] == 1", "index out of bounds: 2"),
        (f"{A}.model.charAt(9) == 'x'", "index out of range"),
    ],
)
def test_evaluation_errors(expression: str, text: str) -> None:
    with pytest.raises(EvaluationError, match=text):
        compile_selector(expression).matches(GPU)


@pytest.mark.parametrize("position", ["nosuch || true", "true || nosuch"])
def test_a_decisive_operand_absorbs_errors_on_either_side(position: str) -> None:
    assert compile_selector(position.replace("nosuch", f"{A}.nosuch")).matches(GPU)
    inverse = position.replace("||", "&&").replace("true", "false").replace("nosuch", f"{A}.nosuch")
    assert not compile_selector(inverse).matches(GPU)


@each_row(
    "expression",
    [
        "", "1", "device", "device.nosuch", "nosuch", "device.driver = 1", "((1)", '"a" == 1', "1 + 1.0 == 2.0", '[1, "a"].size() == 2',
        'device.capacity["d"].m > quantity("1")', "has(device)", "x.all(x, true)", "[1].all(x, x)", '"x".nosuch()', "true ? 1 : 2",
        "9223372036854775808 > 1", '"a".matches("(")', 'duration("x") == duration("1s")', "{1: 1, 1: 2}.size() == 1", "true true", "`a`",
    ],
)  # fmt: skip
def test_compile_errors(expression: str) -> None:
    with pytest.raises(CompileError):
        compile_selector(expression)


def test_the_cost_limit_ends_an_evaluation_despite_operators() -> None:
    ten = "[0, 1, 2, 3, 4, 5, 6, 7, 8, 9]"
    inner = "true"
    for name in "abcdef":
        inner = f"{ten}.all({name}, {inner})"
    with pytest.raises(CostExceededError):
        compile_selector(f"{inner} || true").matches(GPU)


@each_row(
    "expression",
    [
        "[" * 300 + "]" * 300 + " == []",
        "-" * 1000 + "1 == 1",
        " + ".join(["1"] * 2000) + " > 0",
        "device" + ".driver" * 1000,
        "(" * 500 + "true" + ")" * 500,
        "true" + " ? true : true" * 500,
    ],
    ids=["lists", "minus", "sum", "fields", "parentheses", "conditions"],
)
def test_deep_expressions_are_rejected_or_evaluated(expression: str) -> None:
    try:
        compile_selector(expression).matches(GPU)
    except (CompileError, EvaluationError):
        assert len(expression) > MAX_TREE_DEPTH


def test_a_text_cannot_grow_without_bounds() -> None:
    doubled = "x"
    for at in range(40):
        doubled = f"cel.bind(v{at}, {doubled if at else repr('x' * 100)}, v{at} + v{at})"
    with pytest.raises((CostExceededError, CompileError)):
        compile_selector(f'{doubled} == "x"').matches(GPU)


UNREADABLE = CelDevice("d", attributes=MapValue({"d": MapValue({"v": Unreadable("attribute v: unsupported"), "x": 1})}))


@each_row(
    "expression",
    [
        "true",
        'device.driver == "d"',
        'device.attributes["d"].x == 1',
        '"v" in device.attributes["d"]',
        "has(device.attributes.d.v)",
        'device.attributes["d"].exists(name, name == "x")',
        'device.attributes["d"].size() == 2',
        'device.attributes["d"].v == 1 || true',
    ],
)
def test_an_unreadable_attribute_costs_nothing_else(expression: str) -> None:
    assert compile_selector(expression).matches(UNREADABLE)


@each_row(
    "expression",
    [
        'device.attributes["d"].v == 1',
        'device.attributes["d"]["v"] == 1',
        'device.attributes["d"].?v.hasValue()',
        'device.attributes["d"][?"v"].hasValue()',
        'device.attributes["d"].exists(name, value, name == "x" && value == 2)',
        'device.attributes["d"] == device.attributes["d"]',
        'cel.bind(a, device.attributes["d"], a.v == 1)',
        'device.attributes["d"].v.includes(1)',
    ],
)
def test_reading_an_unreadable_attribute_is_an_error(expression: str) -> None:
    with pytest.raises(EvaluationError, match="attribute v: unsupported"):
        compile_selector(expression).matches(UNREADABLE)


LISTS = CelDevice(
    "d",
    attributes=MapValue(
        {
            "d": MapValue(
                {
                    "flags": (True, False),
                    "one": 1,
                    "numbers": (1, 2),
                    "names": ("fish", "bird"),
                    "versions": (parse_semver("1.0.0"), parse_semver("2.0.0")),
                    "many": tuple(range(48)),
                    "more": tuple(range(49)),
                }
            )
        }
    ),
)


@each_row(
    ("attribute", "wanted", "expected"),
    [
        ("flags", "true", True),
        ("numbers", "1", True),
        ("numbers", "3", False),
        ("numbers", '"1"', False),
        ("one", "1", True),
        ("one", "2", False),
        ("names", '"bird"', True),
        ("versions", 'semver("2.0.0")', True),
        ("versions", 'semver("3.0.0")', False),
        ("versions", '"1.0.0"', False),
        ("many", "47", True),
        ("more", "47", True),
    ],
)
def test_includes_reads_lists_and_scalars(attribute: str, wanted: str, expected: bool) -> None:
    program = compile_selector(f'device.attributes["d"].{attribute}.includes({wanted})')
    cost = 6 if wanted.startswith("semver") else 5
    assert program.run(LISTS) == (expected, cost)


def test_includes_refuses_lists_that_are_too_long() -> None:
    with pytest.raises(EvaluationError, match="cannot be applied to lists longer than 48 values"):
        compile_selector('device.attributes["d"].more.includes(48)').matches(LISTS)


@each_row(
    "expression",
    [
        '2 in device.attributes["d"].numbers',
        'device.attributes["d"].numbers.exists(n, n > 1)',
        'device.attributes["d"].versions.all(v, v.isGreaterThan(semver("0.0.1")))',
        'device.attributes["d"].numbers[0] == 1 && device.attributes["d"].names.size() == 2',
    ],
)
def test_list_attributes_are_lists(expression: str) -> None:
    assert compile_selector(expression).matches(LISTS)


def test_what_an_expression_reads() -> None:
    reads = compile_selector(f'device.driver == "d" && {A}.model == "x" && {A}[?"index"].hasValue()').reads
    assert reads.names == {("gpu.example.com", "model"), ("gpu.example.com", "index")}
    assert compile_selector('device.driver in ["a", "b"]').reads.driver_only
    assert compile_selector(f"{A}.size() > 1").reads.everything
    assert compile_selector(f"cel.bind(a, {A}, a.model == 'x')").reads.everything
