"""
Nodes on which devices in use are near just the NUMA nodes where a pod would find some.

What is shared is not published. In ``closing`` the devices that scans showed in use stay as they are, and the others are dealt out so that
those taken first are near all NUMA nodes where the pod would find room otherwise.

In ``rewired`` histories are found by going on from one that agrees, as hardly any other node that is drawn agrees with dozens of scans:
some devices at a time exchange NUMA nodes, or are taken in another order. What still agrees with everything that was shown is kept where
it leaves the pod of the question no more room than before, and goes on changing.

In ``annealed`` changes are kept that contradict what was shown, the fewer the longer it goes on, so that it comes to nodes that no row of
such steps leads to: where the devices that are free are near others than those where the pod finds all else that it asks for.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from math import exp
from random import Random
from typing import Final

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.admit import Admitted, admit
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.state import Device, DevicePool, KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.departures import Branch, Script, graded, replayed, windows
from tests.conformance.kubelet.variants import device_order
from tests.conformance.kubelet.worlds import Played, Recorded, World

DRAWINGS: Final = 60
"""So many nodes are drawn for one question."""


STEPS: Final = 1_500
"""So many changes are tried for one question."""

UPHILL: Final = 0.05
"""So often a change is kept that leaves more room."""


RUNS: Final = 4
"""So often ``annealed`` begins again with the recorded node."""

COOLING: Final = (400, 1.0, 0.2)
"""So many changes are tried in each run, and how far a change may be from what is wanted, first and last."""


def closing(recorded: Recorded, played: Played, index: int, dice: Random) -> Iterator[KubeletNode]:
    """Nodes that may refuse the pod of this question."""
    node, state = recorded.node, played.states[index]
    request = recorded.requests[recorded.events[index]["pod"]]
    shown = _in_use_in_scans(recorded, played, index)
    for name, pool in node.devices.items():
        rest = [device for device in pool.devices if device.id not in shown]
        if not any(device.near.bit_count() > 1 for device in rest):
            continue
        closed = places(state, request, name)
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


def places(state: KubeletState, request: PodRequest, name: str) -> list[int]:
    """The NUMA nodes to which the pod comes, one after the other as the devices of each are taken."""
    found: list[int] = []
    while True:
        verdict = admit(state, "question", request)
        hints = (
            [one.hint for one in verdict.state.pods["question"].grant.containers if one.devices.get(name)]
            if isinstance(verdict, Admitted)
            else []
        )
        mask = hints[0].mask if hints and hints[0] is not None else None
        if mask is None or mask.bit_count() != 1:
            return found
        numa = mask.bit_length() - 1
        if numa in found:  # best-effort: it comes there without a device from there
            return found
        found.append(numa)
        taken = state.managers.devices[name] | state.node.devices[name].near(mask)
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


def rewired(truth: World, script: Script, index: int, dice: Random) -> Iterator[tuple[World, Branch]]:
    """Histories that agree with all that was shown before this question, each with less room for its pod than some before."""
    recorded = truth.recorded
    request = recorded.requests[recorded.events[index]["pod"]]
    state = replayed(truth, script, index)
    names = shared_and_wanted(truth, request)
    if state is None or not names:
        return
    arrivals = [
        at
        for at, event in enumerate(recorded.events[:index])
        if event["ev"] == "pod" and asks_for(recorded.requests[event["pod"]], names)
    ]
    may = {uid: span for uid, span in windows(recorded, index).items() if span[0] < min(span[1], index)}
    world, room = truth, _room(state, request, names)
    for _ in range(STEPS):
        if may and dice.random() < 0.2:
            other, changed = world, with_other_ends(script, may, index, dice)
        else:
            other, changed = _changed(world, script, dice.choice(names), arrivals, room, dice)
        after = replayed(other, changed, index)
        if after is None:
            continue
        left = _room(after, request, names)
        if len(left) <= len(room) or dice.random() < UPHILL:
            world, script, room = other, changed, left
            yield world, Branch(after, script)


def annealed(truth: World, script: Script, index: int, dice: Random) -> Iterator[tuple[World, Branch]]:
    """Histories that agree with all that was shown before this question, with no device free where its pod finds all else."""
    request = truth.recorded.requests[truth.recorded.events[index]["pod"]]
    names = shared_and_wanted(truth, request)
    steps, first, last = COOLING
    for _ in range(RUNS if names else 0):
        world, wanting = truth, _wanting(truth, script, index, names)
        for step in range(steps):
            warmth = first * (last / first) ** (step / steps)
            other = exchanging(world, dice.choice(names), dice)
            after = _wanting(other, script, index, names)
            if after <= wanting or dice.random() < exp((wanting - after) / warmth):
                world, wanting = other, after
                state = None if wanting else replayed(world, script, index)
                if state is not None:
                    yield world, Branch(state, script)


def _wanting(world: World, script: Script, index: int, names: Sequence[str]) -> int:
    """By how much the history is not what is wanted: what contradicts scans and verdicts, and the devices that are free for the pod."""
    differences, state = graded(world, script, index)
    request = world.recorded.requests[world.recorded.events[index]["pod"]]
    return differences + sum(
        (state.node.devices[name].near(1 << numa) & ~state.managers.devices[name]).bit_count()
        for name in names
        for numa in _with_all_else(state, request, name)
    )


def _with_all_else(state: KubeletState, request: PodRequest, name: str) -> list[int]:
    """The NUMA nodes to which the pod would come if all devices of this resource were free there and near no other."""
    found = []
    for numa in state.node.machine.numa_ids:
        pool = DevicePool(tuple(replace(device, near=1 << numa) for device in state.node.devices[name].devices))
        node = replace(state.node, devices={**state.node.devices, name: pool})
        managers = replace(state.managers, devices={**state.managers.devices, name: 0})
        if isinstance(admit(replace(state, node=node, managers=managers), "question", request), Admitted):
            found.append(numa)
    return found


def exchanging(world: World, name: str, dice: Random) -> World:
    """The same with one change or two of what devices are near and which are named last, or of which is taken first."""
    devices = list(world.node.devices[name].devices)
    if dice.random() < 0.15 and len(devices) > 1:
        one, other = dice.sample(range(len(devices)), 2)
        devices[one], devices[other] = devices[other], devices[one]
    else:
        for _ in range(dice.choice((1, 1, 2))):
            devices = _exchanged(devices, None, dice)
    return _with_pool(world, name, devices, _named(world, devices, dice))


def _named(world: World, devices: Sequence[Device], dice: Random) -> dict[str, int]:
    """Which NUMA node the plugin names last of each device: as before where that is near it, most of the time."""
    named = dict(world.last_named or world.recorded.last_named)
    for device in devices:
        if device.near and (not device.near >> named.get(device.id, 0) & 1 or dice.random() < 0.1):
            named[device.id] = dice.choice(members(device.near))
    return named


def with_other_ends(script: Script, may: Mapping[str, tuple[int, int]], index: int, dice: Random) -> Script:
    """With other moments at which one pod or two left, of those at which they may have."""
    ends = dict(script.ends)
    for uid in dice.sample(sorted(may), min(len(may), dice.choice((1, 1, 2)))):
        first, last = may[uid]
        ends.pop(uid, None)
        at = dice.randint(first, min(last, index + 1))
        if at <= index:
            ends[uid] = at
    return replace(script, ends=ends)


def shared_and_wanted(world: World, request: PodRequest | None) -> list[str]:
    """The resources with devices near several NUMA nodes, those that the pod asks for where one is given."""
    return [
        name
        for name, pool in world.node.devices.items()
        if (request is None or asks_for(request, [name]))
        and any(device.near.bit_count() > 1 for device in pool.devices)
    ]


def asks_for(request: PodRequest, names: Sequence[str]) -> bool:
    """Does a container of the pod ask for any of these resources?"""
    return any(part.devices.get(name) for _, part in pod_demand(request).containers for name in names)


def _room(state: KubeletState, request: PodRequest, names: Sequence[str]) -> list[tuple[str, int]]:
    """For each free device of a NUMA node where the pod may come its resource and that NUMA node."""
    found = []
    for name in names:
        pool, taken = state.node.devices[name], state.managers.devices[name]
        for numa in places(state, request, name):
            found += [(name, numa)] * (pool.near(1 << numa) & ~taken).bit_count()
    return found


def _changed(
    world: World, script: Script, name: str, arrivals: Sequence[int], room: Sequence[tuple[str, int]], dice: Random
) -> tuple[World, Script]:
    """The same with one change: of what two devices are near, of which is taken first in general or for one pod, or named last."""
    pool = world.node.devices[name]
    kind = dice.random()
    if kind < 0.2 and arrivals:
        order = {
            **device_order(world.node),
            name: tuple(dice.sample([each.id for each in pool.devices], len(pool.devices))),
        }
        return world, replace(script, orders={**script.orders, dice.choice(arrivals): order})
    if kind < 0.3:
        return _with_pool(world, name, dice.sample(pool.devices, len(pool.devices)), {}), script
    closing = [numa for resource, numa in room if resource == name]
    wanted = dice.choice(closing) if closing and dice.random() < 0.5 else None
    devices = _exchanged(list(pool.devices), wanted, dice)
    for _ in range(dice.choice((0, 0, 1))):
        devices = _exchanged(devices, None, dice)
    return _with_pool(world, name, devices, _named(world, devices, dice)), script


def _with_pool(world: World, name: str, devices: Sequence[Device], named: Mapping[str, int]) -> World:
    node = replace(world.node, devices={**world.node.devices, name: DevicePool(tuple(devices))})
    return replace(world, node=node, last_named=named or world.last_named)


def _exchanged(devices: list[Device], numa: int | None, dice: Random) -> list[Device]:
    """One NUMA node, the given one if any, goes from one device to another, which may give another one back."""
    one = dice.randrange(len(devices))
    if numa is not None:
        having = [place for place, device in enumerate(devices) if device.near >> numa & 1]
        one = dice.choice(having) if having else one
    other = dice.randrange(len(devices))
    mine, theirs = devices[one].near, devices[other].near
    gives = [each for each in members(mine & ~theirs) if numa is None or each == numa]
    takes = members(theirs & ~mine)
    if not gives:
        return devices
    given = 1 << dice.choice(gives)
    taken = 1 << dice.choice(takes) if takes and dice.random() < 0.8 else 0
    if not mine & ~given | taken:
        return devices
    found = list(devices)
    found[one] = replace(devices[one], near=mine & ~given | taken)
    found[other] = replace(devices[other], near=theirs & ~taken | given)
    return found
