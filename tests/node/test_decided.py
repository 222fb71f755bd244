"""Parsing of a pod's annotation by the agent, for any author."""

import json
from typing import Any

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.pods import DecidedPod, decided_pod
from koord_numa.wire import names
from tests.tables import each_row


def decided(status: Any) -> DecidedPod:
    text = status if isinstance(status, str) else json.dumps(status)
    found = decided_pod({"metadata": {"name": "a", "annotations": {names.RESOURCE_STATUS: text}}})
    assert found is not None
    return found


def test_names_match_without_regard_to_case_as_in_go() -> None:
    entry = {"Node": 1, "RESOURCES": {"cpu": "2"}, "resources": None}
    found = decided({"CpuSet": "0-1", "NUMANODERESOURCES": [entry, {"node": 1, "resources": {"cpu": "1"}}]})
    assert (found.cpus, found.amounts, found.problem) == (CpuSet.parse("0-1"), {1: {"cpu": 3000}}, "")


@each_row(
    "status",
    [
        {"cpuset": "0-1", "numaNodeResources": [{"node": 0, "resources": {"cpu": "-100"}}]},
        {"cpuset": "0-1", "numaNodeResources": [{"node": 0, "resources": {"memory": -1}}]},
        {"cpuset": "0-1", "numaNodeResources": [{"node": 5000, "resources": {}}]},
        {"cpuset": "0-1", "numaNodeResources": [3]},
        {"cpuset": "0-1", "numaNodeResources": 3},
        {"cpuset": 3},
        [1],
        "{",
    ],
)
def test_a_malformed_annotation_decides_nothing(status: Any) -> None:
    """Negative amounts above all: the topology would offer them on top of what there is."""
    found = decided(status)
    assert (found.cpus, found.amounts) == (CpuSet(), {})
    assert names.RESOURCE_STATUS in found.problem
