"""Simulated machines that publish the kubelet's exact state, as a node agent does, without one."""

from pathlib import Path
from typing import Any, Final

import pytest

from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.sandbox.machines import NodeDescription, read_descriptions
from koord_numa.wire import parse_topology
from tests.sandbox.machines.conftest import MakeRack
from tests.sandbox.machines.pods import bind, create

MACHINE: Final = {
    "name": "n0",
    "style": "kubelet",
    "sockets": 2,
    "cores": 4,
    "threads": 2,
    "memory": "16Gi",
    "reservedCPUs": "0",
    "devices": {"x/gpu": [0, 1, None]},
    "kubelet": {"cpuOptions": {"full-pcpus-only": True}},
}


def machine(**changes: Any) -> list[NodeDescription]:
    """One machine."""
    return read_descriptions({"machines": [{**MACHINE, **changes}]}, Path())


def published(store: DirectStore) -> Any:
    """Its checkpoint."""
    topology = parse_topology(store.get("noderesourcetopologies.topology.node.k8s.io", "n0"))
    assert not topology.problem
    return topology.checkpoint


@pytest.mark.parametrize("agent", [False, "koord-numa"])
def test_the_state_is_an_option(agent: bool | str, store: DirectStore, rack_of: MakeRack) -> None:
    rack_of(machine(agent=agent))
    assert (published(store) is not None) is (agent == "koord-numa")


def test_admissions_departures_and_refusals(store: DirectStore, rack_of: MakeRack) -> None:
    machines = rack_of(machine(agent="koord-numa"))
    empty = published(store)
    assert (empty.active, empty.pods, empty.default_cpus) == (frozenset(), {}, 0xFFFF)
    assert empty.device_numa == {"x/gpu": {"gpu-0": 1, "gpu-1": 2, "gpu-2": 0}}
    assert empty.cpu_options == {"full-pcpus-only": True}
    assert {row.core for row in empty.cpus} == set(range(8))

    first = create(store, "a", {"cpu": "2", "memory": "1Gi", "x/gpu": "1"})
    odd = create(store, "b", {"cpu": "3", "memory": "1Gi"})
    for pod in (first, odd):
        bind(store, pod, "n0")
    machines.publish()
    found = published(store)
    held = found.pods[first.uid]["c"]
    assert held.cpus.bit_count() == 2
    assert held.devices == {"x/gpu": ("gpu-0",)}
    assert [block.size for block in held.memory] == [2**30]
    assert found.default_cpus == 0xFFFF & ~held.cpus
    assert found.memory[0].amounts["memory"].reserved == 2**30
    assert (found.active, found.gone) == ({first.uid}, {odd.uid})

    machines.nodes["n0"].finish(first)
    machines.publish()
    after = published(store)
    assert (after.pods, after.active, after.gone) == ({}, frozenset(), {first.uid, odd.uid})
    assert (after.default_cpus, after.memory) == (empty.default_cpus, empty.memory)


def test_an_unknown_agent_is_refused() -> None:
    with pytest.raises(ValueError, match="agent"):
        machine(agent="koordlet")
