"""
Histories of one kubelet-owned node that agree with everything that a scheduler was shown: the recorded one, and others.

A *world* is a node (CPU ids, threads, options that are not published, order of devices) and the moment at which each pod ended.
``World.play`` lets the kubelet's procedure run through the recorded arrivals and compares verdicts and scans with the recorded ones; what
differs counts from the event at which the scheduler was shown it. The exporters' formulas are those of the vectors' README.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from koord_numa.core.cpuset import members
from koord_numa.core.fingerprint import fingerprint
from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.demand import is_memory
from koord_numa.core.kubelet.state import ContainerGrant, Grant, KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.resources import supply
from koord_numa.core.value_objects import replace
from koord_numa.wire.pods import parse_pod
from tests.conformance.kubelet.admission import load_node
from tests.conformance.kubelet.churn import pod_object
from tests.conformance.vectors import Case

NEVER: Final = 1 << 40
"""The index of an event that does not come."""


MOST_APART: Final = 4
"""A larger difference of one amount is as bad as one of so many."""


@dataclass(frozen=True)
class Recorded:
    """A sequence with what the scheduler was shown of each event, and when: indexes of events."""

    case: Case

    @property
    def events(self) -> list[Mapping[str, Any]]:
        """As recorded."""
        events: list[Mapping[str, Any]] = self.case["events"]
        return events

    @cached_property
    def node(self) -> KubeletNode:
        """The node as it is."""
        return load_node(self.case["node"], self.case.get("reserved_set", ""))

    @cached_property
    def requests(self) -> list[PodRequest]:
        """The pod templates."""
        return [parse_pod(pod_object("pod", spec, 0.0)).request for spec in self.case["specs"]]

    @cached_property
    def shown(self) -> dict[int, int]:
        """Moments at which the scheduler learned of each verdict, end and scan."""
        found: dict[int, int] = {}
        unseen: dict[str, int] = {}
        scans: dict[int, int] = {}
        for index, event in enumerate(self.events):
            kind = event["ev"]
            if kind in ("pod", "end"):
                found[index] = NEVER if event.get("unseen") else index
                if event.get("unseen"):
                    unseen[event["uid"]] = index
            elif kind == "seen":
                found[unseen.pop(event["uid"])] = index
            elif kind == "scan":
                scans[event["n"]] = index
                found[index] = NEVER
            elif kind == "delivered":
                found[scans[event["n"]]] = index
        return found

    @cached_property
    def begins(self) -> dict[str, int]:
        """Moments at which the pods reached the kubelet."""
        return {event["uid"]: index for index, event in enumerate(self.events) if event["ev"] == "pod"}

    @cached_property
    def ends(self) -> dict[str, int]:
        """True moments at which the pods ended."""
        return {event["uid"]: index for index, event in enumerate(self.events) if event["ev"] == "end"}

    @cached_property
    def zones(self) -> tuple[dict[str, int | None], ...]:
        """Allocatable amounts of each zone."""
        first = next(event["nrt"] for event in self.events if event["ev"] == "scan")
        return tuple(
            {row["name"]: supply(row["name"], row["allocatable"]) for row in zone["resources"]}
            for zone in first["zones"]
        )

    @cached_property
    def last_named(self) -> dict[str, int]:
        """The NUMA node that a plugin names last, by device."""
        rows = [row for pool in self.case["node"]["devices"].values() for row in pool]
        return {row[0]: row[1][-1] if isinstance(row[1], list) else row[1] for row in rows if row[1] not in (None, [])}

    @cached_property
    def told(self) -> dict[int, frozenset[str]]:
        """By scan with a fingerprint the pods of which it speaks: no other set has the same one."""
        states = World(self, self.node, self.ends).play(len(self.events)).states
        return {
            index: frozenset(uid for uid, pod in states[index].pods.items() if self.speaks_of(states[index], pod.grant))
            for index, event in enumerate(self.events)
            if event["ev"] == "scan" and "fingerprint" in event["nrt"]
        }

    @cached_property
    def listable(self) -> frozenset[str]:
        """The pods of which fingerprints speak while they run."""
        states = World(self, self.node, self.ends).play(len(self.events)).states
        return frozenset(
            uid
            for uid, begin in self.begins.items()
            if (pod := states[begin + 1].pods.get(uid)) is not None and self.speaks_of(states[begin + 1], pod.grant)
        )

    def speaks_of(self, state: KubeletState, grant: Grant) -> bool:
        """Return true if a fingerprint counts a pod with this allocation."""
        return self.method == "all" or is_listed(state, grant)

    @cached_property
    def method(self) -> str:
        """Of the fingerprint; that of NFD covers all pods."""
        first = next(event["nrt"] for event in self.events if event["ev"] == "scan")
        named = {one["name"]: one["value"] for one in first.get("attributes", ())}
        return str(named.get("nodeTopologyPodsFingerprintMethod", "all"))


@dataclass(frozen=True)
class World:
    """
    One history. ``ends`` are indexes of events before which pods are gone, ``last_named`` the NUMA nodes that the plugin names last, by
    device, where they are not the recorded ones.
    """

    recorded: Recorded
    node: KubeletNode
    ends: Mapping[str, int]
    last_named: Mapping[str, int] = field(default_factory=dict)

    def play(self, until: int) -> "Played":
        """The state after each event before ``until``."""
        return self.play_on(Played([KubeletState.empty(self.node)], []), 0, until)

    def play_on(self, before: "Played", first: int, until: int) -> "Played":
        """As ``play``, going on from what another world, which is the same up to there, has come to before the event ``first``."""
        states = before.states[: first + 1]
        wrong = [(index, shown) for index, shown in before.wrong if index < first]
        ending = self.ending()
        for index in range(first, until):
            state, matches = self.step(states[-1], index, ending.get(index, ()))
            if not matches:
                wrong.append((index, self.recorded.shown[index]))
            states.append(state)
        return Played(states, wrong)

    def play_while_agreeing(self, until: int) -> "Played":
        """As ``play``, up to the first event that is not as it was shown before ``until``."""
        played, ending = Played([KubeletState.empty(self.node)], []), self.ending()
        for index in range(until):
            state, matches = self.step(played.states[-1], index, ending.get(index, ()))
            played.states.append(state)
            if not matches:
                played.wrong.append((index, self.recorded.shown[index]))
            if not played.agrees_until(until):
                break
        return played

    def ending(self) -> dict[int, list[str]]:
        """The pods that are gone, by the event before which they are."""
        found: dict[int, list[str]] = {}
        for uid, index in self.ends.items():
            found.setdefault(index, []).append(uid)
        return found

    def step(self, state: KubeletState, index: int, away: Iterable[str]) -> tuple[KubeletState, bool]:
        """Return the state after the departure of these pods and the event, and whether the event has its recorded result."""
        recorded, event = self.recorded, self.recorded.events[index]
        for uid in away:
            state = state.without(uid)
        if event["ev"] == "pod":
            verdict = admit_pod(state, event["uid"], recorded.requests[event["pod"]])
            same = isinstance(verdict, Admitted) is event["admitted"] and _same_reason(verdict, event)
            return verdict.state, same
        if event["ev"] == "scan" and recorded.shown[index] < NEVER:
            return state, agrees(recorded, state, event["nrt"], self.last_named)
        return state, True

    def differences(self, state: KubeletState, nrt: Mapping[str, Any]) -> int:
        """
        Count the CPUs and devices, by NUMA node, and the amounts of memory that the exporter would have published differently in this
        state.
        """
        free = available(self.recorded, state, self.last_named or self.recorded.last_named)
        return sum(
            min(abs(free[place].get(name, 0) - amount), 1 if is_memory(name) else MOST_APART)
            for name, amounts in nrt["available"].items()
            for place, amount in enumerate(amounts)
            if amount is not None
        )

    def with_ends(self, changed: Mapping[str, int]) -> "World":
        """The same with other moments for some pods."""
        return replace(self, ends={**self.ends, **changed})


def _same_reason(verdict: Any, event: Mapping[str, Any]) -> bool:
    return isinstance(verdict, Admitted) or event["admitted"] or verdict.refusal.reason == event["reason"]


@dataclass(frozen=True)
class Played:
    """``states[i]`` is the state before event ``i``. ``wrong`` are events that differ from the recorded, with when that was shown."""

    states: list[KubeletState]
    wrong: list[tuple[int, int]] = field(default_factory=list)

    def agrees_until(self, index: int) -> bool:
        """Return true if the world agrees with all observations before this event."""
        return all(shown >= index for _, shown in self.wrong)


def agrees(
    recorded: Recorded, state: KubeletState, nrt: Mapping[str, Any], last_named: Mapping[str, int] | None = None
) -> bool:
    """Return true if the exporter would have published this scan in this state."""
    if "zones" in nrt:
        return True
    free = available(recorded, state, last_named or recorded.last_named)
    for name, amounts in nrt["available"].items():
        for place, amount in enumerate(amounts):
            if amount is not None and free[place].get(name, 0) != amount:
                return False
    return "fingerprint" not in nrt or nrt["fingerprint"] == fingerprint(
        ("default", uid) for uid, pod in state.pods.items() if recorded.speaks_of(state, pod.grant)
    )


def is_listed(state: KubeletState, grant: Grant) -> bool:
    """Return true if a running container has exclusive CPUs, or memory or devices with a NUMA node."""
    near = {device.id: device.near for pool in state.node.devices.values() for device in pool.devices}
    return any(
        one.cpus or one.memory or any(near[device] for ids in one.devices.values() for device in ids)
        for one in _running([grant])
    )


def _running(grants: Iterable[Grant]) -> list[ContainerGrant]:
    return [one for grant in grants for one in grant.containers if one.kind is not ContainerKind.INIT]


def available(recorded: Recorded, state: KubeletState, last_named: Mapping[str, int]) -> list[dict[str, int]]:
    """Return the available amounts per zone that the exporter publishes, in base units: whole CPUs, bytes, pieces."""
    node, numas = state.node, list(state.node.machine.numa_ids)
    free = [
        {name: (amount or 0) // (1000 if name == "cpu" else 1) for name, amount in zone.items()}
        for zone in recorded.zones
    ]
    rte = recorded.case["exporter"] == "rte"
    for one in _running(pod.grant for pod in state.pods.values()):
        for place, numa in enumerate(numas):
            if "cpu" in free[place]:
                free[place]["cpu"] -= (one.cpus.bits & node.machine.numa_bits[numa]).bit_count()
        for block in one.memory:
            places = [numas.index(numa) for numa in members(block.mask)]
            _use_memory(free, places, block.resource, block.amount, in_full=rte)
        for resource, ids in one.devices.items():
            for device in node.devices[resource].devices:
                if device.id not in ids or not device.near:
                    continue
                for numa in members(device.near) if rte else [last_named[device.id]] * device.near.bit_count():
                    free[numas.index(numa)][resource] -= 1
    return [{name: max(0, amount) if rte else amount for name, amount in zone.items()} for zone in free]


def _use_memory(free: list[dict[str, int]], places: list[int], name: str, amount: int, *, in_full: bool) -> None:
    """A block over several NUMA nodes counts in full on each (RTE), or fills them up in ascending order (NFD)."""
    for place in places:
        if name not in free[place]:
            continue
        used = amount if in_full or len(places) == 1 else min(amount, max(0, free[place][name]))
        free[place][name] -= used
        amount -= 0 if in_full else used
