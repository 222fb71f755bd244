"""
Nodes on which devices in use are near just the NUMA nodes where a pod would find some.

What is shared is not published. The devices that scans showed in use stay as they are, and the others are dealt out so that those taken
first are near all NUMA nodes where the pod would find room otherwise.
"""

from collections.abc import Collection, Iterator
from dataclasses import replace
from random import Random
from typing import Final

from koord_numa.core.kubelet.managers.admit import Admitted, admit
from koord_numa.core.kubelet.managers.kubelet_node import Device, DevicePool, KubeletNode
from koord_numa.core.kubelet.managers.manager_state import KubeletState
from koord_numa.core.objects.request import PodRequest
from tests.conformance.kubelet.worlds import Played, Recorded

DRAWINGS: Final = 60
"""So many nodes are drawn for one question."""


def closing(recorded: Recorded, played: Played, index: int, dice: Random) -> Iterator[KubeletNode]:
    """Nodes that may refuse the pod of this question."""
    node, state = recorded.node, played.states[index]
    request = recorded.requests[recorded.events[index]["pod"]]
    shown = _in_use_in_scans(recorded, played, index)
    for name, pool in node.devices.items():
        rest = [device for device in pool.devices if device.id not in shown]
        if not any(device.near.bit_count() > 1 for device in rest):
            continue
        closed = _places(state, request, name)
        held = state.managers.devices[name]
        wide = sum(1 for place, device in enumerate(pool.devices) if device.id not in shown and held >> place & 1)
        first = tuple(device for device in pool.devices if device.id in shown)
        for _ in range(DRAWINGS if closed and wide else 0):
            masks = _dealt(rest, closed, wide, dice)
            if masks is not None:
                dealt = tuple(replace(device, near=mask) for device, mask in zip(rest, masks, strict=True))
                yield replace(node, devices={**node.devices, name: DevicePool((*first, *dealt))})


def _in_use_in_scans(recorded: Recorded, played: Played, index: int) -> frozenset[str]:
    """The devices that pods had when a scan was made that was shown before this event."""
    return frozenset(
        device
        for at, event in enumerate(recorded.events[:index])
        if event["ev"] == "scan" and recorded.shown[at] < index
        for pod in played.states[at].pods.values()
        for one in pod.grant.containers
        for ids in one.devices.values()
        for device in ids
    )


def _places(state: KubeletState, request: PodRequest, name: str) -> list[int]:
    """The NUMA nodes to which the pod comes, one after the other as the devices of each are taken."""
    found: list[int] = []
    while True:
        verdict = admit(state, "question", request)
        hints = (
            [one.hint for one in verdict.state.pods["question"].grant.containers if one.devices.get(name)]
            if isinstance(verdict, Admitted)
            else []
        )
        if not hints or hints[0] is None or not hints[0].mask or hints[0].mask.bit_count() > 1:
            return found
        found.append(hints[0].mask.bit_length() - 1)
        taken = state.managers.devices[name] | state.node.devices[name].near(hints[0].mask)
        managers = replace(state.managers, devices={**state.managers.devices, name: taken})
        state = replace(state, managers=managers)


def _dealt(rest: list[Device], closed: Collection[int], wide: int, dice: Random) -> list[int] | None:
    """
    Masks with as many near each NUMA node as before: of the first ``wide`` ones those near ``closed``; ``None`` where it does not come
    out even.
    """
    counts: dict[int, int] = {}
    for device in rest:
        for numa in range(device.near.bit_length()):
            counts[numa] = counts.get(numa, 0) + (device.near >> numa & 1)
    masks = [0] * len(rest)
    apart = sum(1 for device in rest if not device.near)
    others = [numa for numa in counts if numa not in closed]
    for numa in [*closed, *dice.sample(others, len(others))]:
        order = sorted(
            range(len(rest) - apart),
            key=lambda place: (place >= wide, dice.random()) if numa in closed else (masks[place] != 0, dice.random()),
        )
        for place in order[: counts.get(numa, 0)]:
            masks[place] |= 1 << numa
    return masks if all(masks[: len(rest) - apart]) else None
