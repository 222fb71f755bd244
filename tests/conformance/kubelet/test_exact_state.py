"""The recorded lives of kubelet-owned nodes whose kubelet's exact state is published one second after each change."""

from collections.abc import Mapping
from typing import Any, Final

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import (
    ContainerState,
    CpuRow,
    HeldMemory,
    KubeletCheckpoint,
    MemoryAmounts,
    NodeResourceTopology,
    NumaMemory,
)
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.wire.topologies import parse_topology
from tests.conformance.kubelet.admission import load_node
from tests.conformance.kubelet.churn import LONG, Replay, Tally, class_of, middle, topology_object
from tests.conformance.vectors import Case, cases, each_file

AGE: Final = 1.0
"""Seconds from a change at the kubelet to the delivery of its state."""

EVERY: Final = 40
"""One of so many long sequences is replayed."""

MAX_WRONG_NO: Final = 0.01
"""Share of what the kubelet admits. Each is a departure that nothing has shown yet."""


class ExactReplay(Replay):
    """A sequence whose topologies carry the kubelet's exact state instead of an exporter's amounts."""

    def __init__(self, case: Case) -> None:
        super().__init__(case)
        node = load_node(case["node"], case.get("reserved_set", ""))
        self.published: NodeResourceTopology | None = None
        self.held: dict[str, Mapping[str, Any]] = {}
        self.gone: set[str] = set()
        self.queue: list[tuple[float, KubeletCheckpoint]] = []
        self.memory = node.memory
        self.machine = KubeletCheckpoint(
            read_at=0.0,
            cpus=tuple(CpuRow(cpu.id, cpu.core, cpu.socket, cpu.numa, cpu.uncore) for cpu in node.machine.cpus),
            reserved_cpus=CpuSet.parse(case.get("reserved_set", "")).bits,
            cpu_policy=case["node"]["cpu_manager"],
            memory_policy=case["node"]["memory_manager"],
            cpu_options={name: value == "true" for name, value in case["node"]["cpu_options"].items()},
            device_numa={name: {one.id: one.near for one in pool.devices} for name, pool in node.devices.items()},
        )

    def step(self, number: int) -> None:
        event = self.case["events"][number]
        while self.queue and self.queue[0][0] <= float(event["t"]):
            self._publish(*self.queue.pop(0))
        super().step(number)
        if event["ev"] == "pod" and event["admitted"]:
            self.held[event["uid"]] = event.get("held", {})
        elif event["ev"] in ("pod", "end"):
            self.held.pop(event["uid"], None)
            self.gone.add(event["uid"])
        if event["ev"] in ("pod", "end"):
            self.queue.append((float(event["t"]) + AGE, self._state(float(event["t"]))))

    def _delivered(self, event: Mapping[str, Any], _: int) -> None:
        if not event["n"]:
            self._publish(self.now, self._state(self.now))

    def _publish(self, when: float, state: KubeletCheckpoint) -> None:
        self.now = max(self.now, when)
        topology = parse_topology(topology_object(self.case, self.scans[0], self.scans[0]))
        self.published = replace(topology, checkpoint=state, resource_version=f"{state.read_at}")
        self.cache.observe_topology(None, self.published)

    def _new_cache(self) -> Cache:
        cache = super()._new_cache()
        if (published := getattr(self, "published", None)) is not None:
            cache.observe_topology(None, published)
        return cache

    def _state(self, when: float) -> KubeletCheckpoint:
        pods = {
            uid: {name: container_state(one) for name, one in held.items()} for uid, held in self.held.items() if held
        }
        groups = {numa: 1 << numa for numa in self.memory}
        for block in (block for held in pods.values() for one in held.values() for block in one.memory):
            groups.update({numa: block.numa_mask for numa in groups if block.numa_mask >> numa & 1})
        return replace(
            self.machine,
            read_at=when,
            pods=pods,
            active=frozenset(self.held),
            gone=frozenset(self.gone),
            memory={
                numa: NumaMemory(groups[numa], {name: MemoryAmounts(amount, 0) for name, amount in amounts.items()})
                for numa, amounts in self.memory.items()
                if self.machine.memory_policy == "Static"
            },
        )


def container_state(held: Mapping[str, Any]) -> ContainerState:
    """Return the allocation of a container from its recorded form."""
    memory = held.get("memory") or []
    blocks = memory if isinstance(memory, list) else [memory]
    return ContainerState(
        CpuSet.parse(held.get("cpus", "")).bits,
        tuple(
            HeldMemory(sum(1 << numa for numa in one["numa"]), one.get("type", "memory"), one["size"])
            for one in blocks
            if one["size"]
        ),
        {name: tuple(ids) for name, ids in held.get("devices", {}).items()},
    )


def judge_exact(case: Case, restart: int | None = None) -> Tally:
    """As ``judge``, with the kubelet's exact state in place of the amounts of an exporter."""
    replay = ExactReplay(case)
    tally = replay.run(restart)
    return tally if restart is None else replay.restarted(restart).run(begin=restart)


@pytest.mark.parametrize("restart", [False, True])
@each_file("kubelet-churn")
def test_exact_state_one_second_old(file: Any, record_property: Any, *, restart: bool) -> None:
    long = [case for case in cases(file) if class_of(case) == LONG]
    asked = admitted = wrong_no = 0
    for case in long[::EVERY]:
        tally = judge_exact(case, middle(case) if restart else None)
        assert not tally.wrong_yes, tally.named
        assert not tally.explored
        asked, admitted = asked + tally.asked, admitted + tally.admitted
        wrong_no += tally.wrong_no.total()
    record_property("conformance", f"{asked} questions, wrong no {wrong_no} of {admitted}")
    assert asked
    assert wrong_no <= MAX_WRONG_NO * admitted
