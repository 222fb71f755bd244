"""
Comparison of a recorded kubelet's true state with the states that the operator's cache follows.

``lost`` plays a sequence for the cache and for the kubelet's own procedure at once and names the events after which it is in none of them.
Compared is what has been told by then: pods that came before any that has left unseen. What the cache gives up on purpose, as there are
more states than it follows, it says so of (``Belief.overflow``, ``Belief.shortened``), and these are named, too.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import compress
from typing import Final

from koord_numa.core.cpuset import members
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.history import KubeletHistory
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa, held_by_init, may_lie_otherwise, reached
from koord_numa.core.kubelet.node_config import is_located
from koord_numa.core.kubelet.shown_pods import is_tied
from koord_numa.core.kubelet.state import AdmittedPod, ContainerGrant, KubeletNode, KubeletState
from koord_numa.core.numa.hints import mask_of
from koord_numa.core.objects.vocabulary import ContainerKind
from tests.conformance.kubelet.churn import NODE, Replay
from tests.conformance.kubelet.worlds import NEVER, Recorded, World
from tests.conformance.vectors import Case

MOST_DEVICES: Final = 6
"""Of a pod with more of one resource it is not compared which of them is which."""


@dataclass(frozen=True)
class Lost:
    """The event after which no hypothesis is the true state, the differences, and whether states were given up on purpose."""

    index: int
    why: tuple[str, ...]
    given_up: bool


def lost(case: Case) -> Iterator[Lost]:
    """Each event after which the true state is not followed any more although it was before."""
    recorded = Recorded(case)
    truth = World(recorded, recorded.node, recorded.ends).play(len(recorded.events))
    replay, before = Replay(case), False
    for index, event in enumerate(recorded.events):
        # Questions tell the cache something only where options are explored.
        if event["ev"] == "ask" and case["published"]:
            continue
        replay.step(index)
        history = replay.cache.nodes[NODE].history
        belief = history.belief
        if belief is None:
            before = False
            continue
        # One that is lost for a while may come back without the state that it lacked before.
        if belief.lost:
            continue
        told = [uid for uid in _told(recorded, index) if _is_followed(history, uid)]
        why = tuple(difference(one, truth.states[index + 1], told) for one in belief.hypotheses)
        if all(why) and not before:
            yield Lost(index, why, bool(belief.overflow or belief.shortened))
        before = all(why)


def _is_followed(history: KubeletHistory, uid: str) -> bool:
    """Return true if the kubelet's managers allocate anything to the pod and it may have been admitted."""
    known, frame = history.pods[uid], history.frame
    return frame is not None and uid not in history.absent.hopeless and is_tied(pod_demand(known.request), frame)


def _told(recorded: Recorded, index: int) -> Iterator[str]:
    """The pods that are there after an event and came before any had left of which that is not shown."""
    ends = recorded.ends
    unseen = min((end for end in ends.values() if end <= index < recorded.shown[end]), default=NEVER)
    for uid, begin in recorded.begins.items():
        if begin <= index and begin < unseen and ends.get(uid, NEVER) > index and recorded.events[begin]["admitted"]:
            yield uid


def difference(one: Hypothesis, truth: KubeletState, uids: Collection[str]) -> str:
    """In which of these pods the true state is none of those that the hypothesis stands for, in words; empty where it is."""
    for uid in uids:
        if uid in one.unlocated or uid in one.unplaced:
            continue
        if uid not in one.state.pods or uid in one.unexplained:
            return f"{uid} is not there"
        known = {each.name: each for each in one.state.pods[uid].grant.containers}
        for given in truth.pods[uid].grant.containers:
            if given.kind is not ContainerKind.INIT and (
                why := _container_differs(one, uid, known[given.name], given, truth)
            ):
                return f"{uid}, {given.name}: {why}"
        if why := _devices_differ(one, uid, truth):
            return f"{uid}: {why}"
    return _init_differs(one, truth, [uid for uid in uids if uid in one.state.pods])


def _container_differs(
    one: Hypothesis, uid: str, known: ContainerGrant, given: ContainerGrant, truth: KubeletState
) -> str:
    node = one.state.node
    here, there = cpus_by_numa(known.cpus.bits, node), cpus_by_numa(given.cpus.bits, truth.node)
    is_open = (uid in one.spread or uid in one.mixed) and may_lie_otherwise(known, node) and not is_located(known)
    if (sum(here) != sum(there)) if is_open else (here != there):
        return f"CPUs {there}, not {here}"
    if is_open and (far := mask_of(compress(node.machine.numa_bits, there)) & ~reached(known, node)):
        return f"CPUs {there}, not on NUMA nodes {members(far)}"
    blocks, true = _blocks(known), _blocks(given)
    return f"memory {true}, not {blocks}" if blocks != true else ""


def _blocks(given: ContainerGrant) -> list[tuple[str, int, int]]:
    return sorted((block.resource, block.mask, block.amount) for block in given.memory if block.amount)


def _init_differs(one: Hypothesis, truth: KubeletState, uids: Sequence[str]) -> str:
    """
    Compare CPUs of init containers with their bounds: certainly held CPUs, and these with the loose CPUs of which each has at most one
    owner.
    """
    node = one.state.node
    loose: dict[str, int] = {}
    for place, here in enumerate(node.machine.numa_bits.values()):
        wanted: list[int] = []
        for uid in uids:
            true = cpus_by_numa(held_by_init(truth.pods[uid].grant), truth.node)[place]
            held = held_by_init(one.state.pods[uid].grant)
            mine = one.loose.get(uid, 0)
            if uid in one.spread or uid in one.mixed:
                loose[uid] = loose.get(uid, 0) + true
                continue
            more = true - (held & ~mine & here).bit_count()
            if more < 0:
                return (
                    f"{uid}: init containers hold {true} on NUMA node {place}, not {(held & ~mine & here).bit_count()}"
                )
            wanted += [mine & here] * more
        if not _each_has_one(wanted):
            return f"init containers hold more on NUMA node {place} than {len(wanted)} that are loose"
    for uid, true in loose.items():
        held, mine = held_by_init(one.state.pods[uid].grant), one.loose.get(uid, 0)
        if not (held & ~mine).bit_count() <= true <= (held | mine).bit_count():
            return f"{uid}: init containers hold {true} in all, not {held.bit_count()} of which {mine.bit_count()} are loose"
    return ""


def _each_has_one(wanted: Sequence[int]) -> bool:
    """Return true if a perfect matching of owners to bits exists. Uses augmenting paths."""
    holder: dict[int, int] = {}

    def gets_one(at: int, tried: set[int]) -> bool:
        for bit in members(wanted[at]):
            if bit not in tried:
                tried.add(bit)
                if bit not in holder or gets_one(holder[bit], tried):
                    holder[bit] = at
                    return True
        return False

    return all(gets_one(at, set()) for at in range(len(wanted)))


def _devices_differ(one: Hypothesis, uid: str, truth: KubeletState) -> str:
    node, true = one.state.node, _near(truth.pods[uid], truth.node)
    known = _near(one.state.pods[uid], node)
    for name in node.devices:
        masks = true.get(name, [])
        if name in one.sharing:
            held = sum(len(given.devices.get(name, ())) for given in one.state.pods[uid].grant.containers)
            if held != len(masks):
                return f"{len(masks)} {name}, not {held}"
        elif node.aligns and sorted(masks) != sorted(known.get(name, [])):
            return f"{name} near {masks}, not {known.get(name, [])}"
    return ""


def _near(pod: AdmittedPod, node: KubeletNode) -> Mapping[str, list[int]]:
    found: dict[str, set[str]] = {}
    for given in pod.grant.containers:
        for name, ids in given.devices.items():
            found.setdefault(name, set()).update(ids)
    return {
        name: [device.near for device in node.devices[name].devices if device.id in ids] for name, ids in found.items()
    }
