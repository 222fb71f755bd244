"""Reports of the node agent about pods on other CPUs. They never make a topology unusable."""

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import CpusetDifference, Pinning
from koord_numa.wire import names, parse_topology
from tests.tables import each_row
from tests.wire.objects import KOORDINATOR_NRT


def test_differences_are_read() -> None:
    text = '{"default/a": {"decided": "1-2", "observed": "0-15", "why": "no agent applies it"}}'
    obj = {**KOORDINATOR_NRT, "metadata": {**KOORDINATOR_NRT["metadata"]}}
    obj["metadata"]["annotations"] = {**obj["metadata"]["annotations"], names.CPUSET_DIFFERENCES: text}
    expected = CpusetDifference(CpuSet.parse("1-2"), CpuSet.parse("0-15"), "no agent applies it")
    assert parse_topology(obj).differences == {"default/a": expected}


@each_row(
    ("text", "expected"),
    [
        ('{"through":"NRI","containers":1,"seconds":0.0}', Pinning("NRI", 1, 0)),
        ('{"through":"CRI","containers":12,"seconds":1.25}', Pinning("CRI", 12, 1.25)),
        ('{"through":"\\u001b[31m","containers":1}', None),
        ('{"through":"NRI","containers":-1}', None),
        ('{"through":"NRI","seconds":-1}', None),
        ('{"through":"NRI","seconds":1e300}', None),
        ('{"through":"NRI","containers":"x"}', None),
        ("{", None),
        ("null", None),
    ],
)
def test_pinning_is_read(text: str, expected: Pinning | None) -> None:
    obj = {**KOORDINATOR_NRT, "metadata": {**KOORDINATOR_NRT["metadata"]}}
    obj["metadata"]["annotations"] = {**obj["metadata"]["annotations"], names.PINNING: text}
    topology = parse_topology(obj)
    assert (topology.pinning, topology.problem) == (expected, "")


@each_row("text", ["{", "[]", '{"a": 1}', '{"a": {"decided": "x"}}', "null"])
def test_malformed_differences_spoil_nothing(text: str) -> None:
    obj = {**KOORDINATOR_NRT, "metadata": {**KOORDINATOR_NRT["metadata"]}}
    obj["metadata"]["annotations"] = {**obj["metadata"]["annotations"], names.CPUSET_DIFFERENCES: text}
    topology = parse_topology(obj)
    assert not topology.problem
    assert not topology.differences
