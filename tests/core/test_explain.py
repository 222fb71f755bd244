"""Messages about waiting pods: counts that add up, numbers per NUMA node, bounded length."""

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.explain import (
    LENGTH,
    amounts_text,
    closest_nodes,
    describe,
    explain,
    largest_that_fits,
    needs_text,
)
from koord_numa.core.objects.verdicts import NumaNumbers, Reason, Rejection
from tests.tables import each_row

GI = 2**30


def cpus(*free: int, total: int = 8000, needed: int = 8000) -> tuple[NumaNumbers, ...]:
    return tuple(NumaNumbers(numa, "cpu", total, amount, needed) for numa, amount in enumerate(free))


NO_ROOM = Rejection(Reason.NUMA_AFFINITY, "NUMA policy cannot be met", "needs 8 in one", numbers=cpus(4000, 6000))
TAINTED = Rejection(Reason.TAINT, "node(s) had untolerated taint {a: b}", resolvable=False)


def test_the_sentence_and_the_line_with_numbers() -> None:
    rejections = {"worker-1": TAINTED, "worker-2": TAINTED, "worker-3": NO_ROOM}
    assert explain(rejections, lines=1) == (
        "0/3 nodes are available: 1 NUMA policy cannot be met, 2 node(s) had untolerated taint {a: b}.\n"
        "worker-3: NUMA 0 has 4 of 8 CPUs free, NUMA 1 has 6 of 8; needs 8 in one"
    )


def test_without_nodes() -> None:
    assert explain({}) == "0/0 nodes are available."


def test_the_closest_node_is_described_first() -> None:
    far = Rejection(Reason.NUMA_AFFINITY, "NUMA policy cannot be met", numbers=cpus(1000, 0))
    text = explain({"a-far": far, "b-near": NO_ROOM, "c-tainted": TAINTED}, lines=1)
    assert "\nb-near: " in text
    assert "a-far" not in text


@given(st.dictionaries(st.text("ab", min_size=1), st.tuples(st.integers(0, 8), st.booleans(), st.booleans())))
def test_the_first_few_are_those_of_the_whole_order(nodes: dict[str, tuple[int, bool, bool]]) -> None:
    rejections = {
        name: Rejection(
            Reason.NUMA_AFFINITY, "m", resolvable=resolvable, numbers=cpus(1000 * free) if has_numbers else ()
        )
        for name, (free, resolvable, has_numbers) in nodes.items()
    }
    order = sorted(
        nodes, key=lambda name: (not nodes[name][2], not nodes[name][1], -nodes[name][0] * nodes[name][2], name)
    )
    # The first node with and the first node without numbers, then the others.
    first = {nodes[name][2]: name for name in reversed(order)}.values()
    chosen = [*sorted(first, key=order.index), *(name for name in order if name not in first)][:3]
    assert closest_nodes(rejections, 3) == sorted(chosen, key=order.index)


def test_nodes_of_no_interest_to_the_pod_are_described_last() -> None:
    not_meant = Rejection(Reason.NODE_AFFINITY, "node(s) didn't match", "the node lacks a=b", resolvable=False)
    odd = Rejection(Reason.CPU_COUNT, "node(s) wanted whole cores", "3 CPUs, 2 per core", resolvable=False)
    too_small = Rejection(Reason.RESOURCES, "Insufficient gpu", "needs 1 gpu, 0 of 0 free", resolvable=False)
    assert explain({"a": not_meant, "b": odd, "c": too_small}).splitlines()[1:] == ["b: 3 CPUs, 2 per core"]
    assert explain({"a": not_meant}).splitlines()[1:] == ["a: the node lacks a=b"]


@each_row(
    ("rejection", "text"),
    [
        pytest.param(TAINTED, "", id="nothing-to-add"),
        pytest.param(
            Rejection(Reason.CPU_COUNT, "m", "3 CPUs are no whole number of cores"),
            "3 CPUs are no whole number of cores",
            id="only-a-rule",
        ),
        pytest.param(
            Rejection(
                Reason.NUMA_AFFINITY,
                "m",
                "needs 4.5 CPUs, 8Gi memory in one",
                numbers=(
                    *cpus(3500, total=4000),
                    NumaNumbers(0, "memory", 16 * GI, 12 * GI + GI // 4, 8 * GI),
                    NumaNumbers(0, "nvidia.com/gpu", 2, 1, 1),
                ),
                largest={"cpu": 3500, "memory": 12 * GI},
            ),
            "NUMA 0 has 3.5 of 4 CPUs free; NUMA 0 has 12.2Gi of 16Gi memory free; NUMA 0 has 1 of 2 nvidia.com/gpu free; "
            "needs 4.5 CPUs, 8Gi memory in one; the largest that fits is 3.5 CPUs, 12Gi memory",
            id="several-resources",
        ),
        pytest.param(
            Rejection(Reason.NUMA_AFFINITY, "m", numbers=cpus(0, 1000, 0, 5000, 2000, 3000)),
            "NUMA 1 has 1 of 8 CPUs free, NUMA 3 has 5 of 8, NUMA 4 has 2 of 8, NUMA 5 has 3 of 8, 2 others less",
            id="many-numa-nodes",
        ),
        pytest.param(
            Rejection(Reason.CPUS, "m", numbers=(NumaNumbers(0, "cpu", 8000, 0, 2000, "in whole cores"),)),
            "NUMA 0 has 0 of 8 CPUs free in whole cores",
            id="numbers-of-a-shape",
        ),
        pytest.param(
            Rejection(Reason.CPUS, "m", numbers=(NumaNumbers(0, "cpu", 1000, 1000, 2000),), largest={"cpu": 1000}),
            "NUMA 0 has 1 of 1 CPU free; the largest that fits is 1 CPU",
            id="one-cpu",
        ),
    ],
)
def test_one_node(rejection: Rejection, text: str) -> None:
    assert describe(rejection) == text


@each_row(
    ("resource", "amount", "there", "needed"),
    [
        ("cpu", 1000, "1 CPU", "1 CPU"),
        ("cpu", 0, "0 CPUs", "0 CPUs"),
        ("cpu", 84500, "84.5 CPUs", "84.5 CPUs"),
        ("cpu", 1, "0.001 CPUs", "0.001 CPUs"),
        ("cpu", 1_234_567_890, "1234567.89 CPUs", "1234567.89 CPUs"),
        ("memory", 8 * GI, "8Gi memory", "8Gi memory"),
        ("memory", 8 * GI + 1, "8Gi memory", "8.1Gi memory"),
        ("memory", 1023, "1023 memory", "1023 memory"),
        ("ephemeral-storage", 3 * GI // 2, "1.5Gi ephemeral-storage", "1.5Gi ephemeral-storage"),
        ("hugepages-2Mi", 2**21, "2Mi hugepages-2Mi", "2Mi hugepages-2Mi"),
        ("nvidia.com/gpu", 1, "1 nvidia.com/gpu", "1 nvidia.com/gpu"),
    ],
)
def test_amounts(resource: str, amount: int, there: str, needed: str) -> None:
    assert (amounts_text({resource: amount}), needs_text({resource: amount})) == (there, needed)


@each_row(
    ("wanted", "rooms", "units", "largest"),
    [
        pytest.param(
            {"cpu": 14000, "nic": 1}, [{"cpu": 2000, "nic": 1}, {"cpu": 16000}], {}, {"cpu": 2000, "nic": 1}, id="nic"
        ),
        pytest.param({"cpu": 14000, "nic": 1}, [{"cpu": 2000}, {"nic": 4}], {}, {}, id="never-both"),
        pytest.param({"cpu": 4000}, [{"cpu": 3000}], {"cpu": 2000}, {"cpu": 2000}, id="whole-cores"),
        pytest.param({"cpu": 4000}, [{"cpu": 1000}], {"cpu": 2000}, {}, id="no-whole-core"),
        pytest.param({"cpu": 4000, "x": 0}, [{"cpu": 3000}], {}, {"cpu": 3000, "x": 0}, id="nothing-wanted-of-one"),
        pytest.param({"cpu": 4000, "x": 0}, [{"cpu": 8000}], {}, {}, id="the-size-is-not-the-reason"),
        pytest.param(
            {"cpu": 4000, "x": 4},
            [{"cpu": 9000, "x": 1}, {"cpu": 2000, "x": 2}],
            {},
            {"cpu": 2000, "x": 2},
            id="scarcest",
        ),
    ],
)
def test_the_largest_that_fits_has_the_shape_of_the_request(
    wanted: dict[str, int], rooms: list[dict[str, int]], units: dict[str, int], largest: dict[str, int]
) -> None:
    assert largest_that_fits(wanted, rooms, units) == largest


@given(
    st.dictionaries(st.sampled_from("abc"), st.integers(0, 5), min_size=1),
    st.lists(st.dictionaries(st.sampled_from("abc"), st.integers(0, 5)), max_size=4),
)
def test_the_largest_that_fits_is_some_of_each_and_fits(wanted: dict[str, int], rooms: list[dict[str, int]]) -> None:
    size = largest_that_fits(wanted, rooms)
    somewhere = any(all(room.get(name, 0) >= bool(amount) for name, amount in wanted.items()) for room in rooms)
    whole = any(all(room.get(name, 0) >= amount for name, amount in wanted.items()) for room in rooms)
    assert bool(size) == (somewhere and any(wanted.values()) and not whole)
    if size:
        assert size.keys() == wanted.keys()
        assert all(bool(size[name]) == bool(amount) and size[name] <= amount for name, amount in wanted.items())
        assert any(all(room.get(name, 0) >= amount for name, amount in size.items()) for room in rooms)


@given(st.lists(st.text("abcdef ", min_size=1, max_size=40), max_size=60))
def test_counts_add_up_and_length_is_bounded(messages: list[str]) -> None:
    rejections = {
        f"node-{index}": Rejection(Reason.TAINT, f"node(s) {message.strip()}", detail="why" * index)
        for index, message in enumerate(messages)
    }
    text = explain(rejections)
    assert len(text) <= LENGTH
    sentence = text.split("\n")[0]
    counts = [int(count) for count in re.findall(r"(?:: |, )(\d+) (?:node\(s\)|for other)", sentence)]
    assert sum(counts) == len(messages)
