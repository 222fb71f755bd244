"""A late topology shows a departed pod where another of the same name is by then: what is placed after it is admitted."""

from typing import Any, Final

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.engine.cache.topology_lag import RECENT
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from koord_numa.wire import parse_topology
from tests.kubelets.exporters.exported_life import ExportedLife, Exporter
from tests.kubelets.law import broken
from tests.kubelets.strategies import GIB, GPU, container
from tests.tables import each_row

TINY: Final[dict[str, Any]] = {"containers": [{"name": "app", "resources": {}}]}

EARLIER: Final = 1_000.0
"""Seconds after which the scheduler is not new any more."""


def pod(cpus: int, gpus: int = 0) -> dict[str, Any]:
    return {"containers": [container("app", cpus, 1, gpus)]}


def life(exporter: Exporter) -> ExportedLife:
    """
    NUMA node 0 has 3 exclusive CPUs and a GPU, NUMA node 1 has 4 CPUs. A pod of 3 was on NUMA node 1 when the exporter looked, and left
    with one on NUMA node 0; another of its name and size is on its way, to NUMA node 0.
    """
    reserved = CpuSet.of((0,))
    config = KubeletConfig(
        topology_policy=KubeletPolicy.SINGLE_NUMA_NODE,
        cpu_policy="static",
        memory_policy="None",
        reserved_cpus=reserved,
    )
    hardware = Shape(2, 1, 4, 1, 16 * GIB, devices={GPU: (0,)}).build()
    one = ExportedLife(NodeDescription("n", hardware, Style.KUBELET, config, reserved=reserved), exporter=exporter)
    one.wait(EARLIER)
    # The second name is free again when the pod on NUMA node 1 comes.
    for spec in (TINY, TINY, pod(3)):
        one.place(spec)
    one.settle()
    one.end(1)
    one.settle()
    one.place(pod(3))
    one.settle()
    one.end(1)
    one.scan()
    one.end(1)
    while one.news:
        one.hear()
    one.place(pod(3))
    return one


@each_row("exporter", Exporter)
@each_row("has_started", [True, False])
def test_a_departed_pod_tells_not_where_another_of_its_name_is(exporter: Exporter, has_started: bool) -> None:
    one = life(exporter)
    if has_started:
        one.admit()
        one.hear()
    one.deliver()
    shown = [zone.available["cpu"] for zone in parse_topology({**one.published}).zones]
    assert shown == [3000, 1000]
    one.place(pod(2, gpus=1))
    one.place(pod(4))
    one.settle()
    assert not broken(one)
    if has_started:
        assert one.placed == 6, "the pod of 4 CPUs fits NUMA node 1"


@pytest.mark.parametrize("another_comes", [True, False])
def test_after_minutes_a_topology_shows_the_current_namesake(another_comes: bool) -> None:
    """Should the next one say the same it is none that comes."""
    one = life(Exporter.RTE)
    one.settle()
    history = one.cache.nodes["n"].history
    reading = history.read()
    assert reading is not None
    assert len(reading.ways) == 2
    one.wait(RECENT)
    if another_comes:
        one.place(TINY)
        one.settle()
    reading = history.read()
    assert reading is not None
    assert not reading.namesakes
    assert history.belief is not None
    assert not history.belief.arrivals
    assert [pod.uid for pod in history.pods.values() if pod.left] == []
