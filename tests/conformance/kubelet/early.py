"""
Histories in which pods reach the kubelet sooner after their bind than they were recorded to.

A scheduler is shown a bind and, some time later, a verdict, and not when the kubelet decided in between: pods that were still there may be
gone by the time at which the recorded kubelet decided. So a pod may be admitted, or refused, right after its bind, and with it all that
were bound before. Nothing that was shown changes, nor does the index of any other event.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from random import Random
from typing import Any, Final

from koord_numa.core.kubelet.state import KubeletNode
from koord_numa.core.objects.request import PodRequest
from tests.conformance.kubelet.worlds import Recorded

DRAWINGS: Final = 6
"""So many sets of pods are drawn for one question, beside all together."""


@dataclass(frozen=True)
class Early(Recorded):
    """The ``original`` with some pods at the kubelet right after their bind; scans tell what they tell there."""

    original: Recorded

    @property
    def node(self) -> KubeletNode:
        """As it is."""
        return self.original.node

    @property
    def requests(self) -> list[PodRequest]:
        """The pod templates."""
        return self.original.requests

    @property
    def told(self) -> dict[int, frozenset[str]]:
        """Fingerprints are of the recorded history."""
        return self.original.told

    @property
    def listable(self) -> frozenset[str]:
        """So are these."""
        return self.original.listable

    @cached_property
    def ends(self) -> dict[str, int]:
        """When each pod ended in truth."""
        return self.original.ends


def early_histories(recorded: Recorded, first: int, index: int, dice: Random) -> Iterator[Early]:
    """With pods that were bound between the events ``first`` and ``index`` earlier: all of them, and some."""
    binds = {event["uid"]: at for at, event in enumerate(recorded.events) if event["ev"] == "bind"}
    waiting = [uid for uid, at in binds.items() if first <= at < index and recorded.begins.get(uid, 0) > at + 1]
    movable = _without_told(recorded, binds, waiting, index)
    tried: list[frozenset[str]] = []
    for number in range(1 + DRAWINGS if movable else 0):
        moved = frozenset(_with_those_before(recorded, binds, movable, {dice.choice(movable)} if number else movable))
        if moved not in tried:
            tried.append(moved)
            yield Early({**recorded.case, "events": _moved(recorded, binds, moved)}, recorded)


def _with_those_before(
    recorded: Recorded, binds: Mapping[str, int], movable: Sequence[str], chosen: Collection[str]
) -> set[str]:
    """In the order of the binds: pods that were bound before one that comes early are at the kubelet before it."""
    found = set(chosen)
    for uid in reversed(movable):
        if any(binds[uid] < binds[other] < recorded.begins[uid] for other in found):
            found.add(uid)
    return found


def _without_told(recorded: Recorded, binds: Mapping[str, int], waiting: Collection[str], index: int) -> list[str]:
    """Without pods that a scan would have shown in between, that came after others, or that were bound while one of these waited."""
    found: list[str] = []
    others = [at for uid, at in recorded.begins.items() if uid not in waiting]
    stuck = 0
    for uid in sorted(waiting, key=binds.__getitem__):
        begin = recorded.begins[uid]
        scans = [at for at in range(binds[uid], begin) if recorded.events[at]["ev"] == "scan"]
        passed = any(binds[uid] < at < begin for at in others)
        if passed or binds[uid] < stuck or any(recorded.shown[at] < index for at in scans):
            stuck = max(stuck, begin)
        else:
            found.append(uid)
    return found


def _moved(recorded: Recorded, binds: Mapping[str, int], chosen: Collection[str]) -> list[Mapping[str, Any]]:
    events = list(recorded.events)
    for uid in chosen:
        verdict = events[recorded.begins[uid]]
        # Shown when it was shown: at an event of its own, or where it was recorded.
        events[recorded.begins[uid]] = {
            "t": verdict["t"],
            "ev": "bind" if verdict.get("unseen") else "seen",
            "uid": uid,
        }
        events[binds[uid]] = {**verdict, "t": events[binds[uid]]["t"], "unseen": True}
    return events
