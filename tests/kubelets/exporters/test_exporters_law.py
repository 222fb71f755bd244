"""The law of kubelet-owned nodes with topologies of real exporters: what the engine places is admitted."""

from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from koord_numa.wire import parse_topology
from tests.kubelets.exporters.exported_life import ExportedLife, Exporter
from tests.kubelets.law import broken, live_on
from tests.kubelets.strategies import GIB, Action, actions, container, nodes, specs
from tests.kubelets.test_admission_law import FIXED
from tests.tables import each_row

SHARE: Final = 5
"""One of so many of the law's examples has a real exporter."""


@given(nodes(), st.sampled_from(Exporter), st.lists(specs(), min_size=1, max_size=6), actions())
def what_is_placed_is_admitted(
    node: NodeDescription, exporter: Exporter, pods: list[dict[str, Any]], what: list[Action]
) -> None:
    """One example of the law."""
    found = broken(live_on(ExportedLife(node, exporter=exporter), pods, what))
    assert not found, "\n".join([str(exporter), *found])


def test_what_is_placed_is_admitted_whatever_exports_topologies(pytestconfig: pytest.Config) -> None:
    count = int(pytestconfig.getoption("--law-examples"))
    profile = settings(max_examples=count // SHARE, derandomize=count <= FIXED, database=None, deadline=None)
    profile(what_is_placed_is_admitted)()


@each_row("exporter", Exporter)
def test_finished_init_containers_are_not_exported(exporter: Exporter) -> None:
    """The kubelet keeps two CPUs of the init container; the pod resources API lists the two of the app."""
    reserved = CpuSet.of((0,))
    config = KubeletConfig(
        topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
        cpu_policy="static",
        memory_policy="Static",
        reserved_cpus=reserved,
    )
    node = NodeDescription("n", Shape(2, 1, 4, 2, 16 * GIB).build(), Style.KUBELET, config, reserved=reserved)
    one = ExportedLife(node, exporter=exporter)
    one.place({"initContainers": [container("init", 4, 4)], "containers": [container("app", 2, 1)]})
    one.place({"containers": [{"name": "app", "resources": {}}]})
    while one.arriving:
        one.admit()
    one.scan()
    topology = parse_topology(one.scans[-1])
    assert [zone.available["cpu"] for zone in topology.zones] == [5000, 8000]
    assert [zone.allocatable["memory"] - zone.available["memory"] for zone in topology.zones] == [GIB, 0]
    assert bool(topology.fingerprint) == (exporter is not Exporter.NFD_BARE)
    assert topology.fingerprint_method == (exporter.value if exporter.is_rte else "")
