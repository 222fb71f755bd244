"""
Simulation: pods are decided one after another in a snapshot.

A placed pod counts for later pods until it leaves. Nothing is created.
"""

import sys
from collections.abc import Sequence
from enum import Enum
from heapq import heappop, heappush
from math import inf
from typing import Final

import click

from koord_numa.cli.cluster.snapshot import Snapshot, WouldWait
from koord_numa.cli.cluster.trace import TracePod
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Alignment, Placement
from koord_numa.core.value_objects import ValueObject

FEW: Final = 200
"""Number of pods below which no progress bar is shown."""


class SimulatedOutcome(Enum):
    """The simulated outcome of a pod."""

    PLACED = "placed"
    AFTER_EVICTIONS = "placed when others have been evicted"
    WAITS = "waits"


class Simulated(ValueObject):
    """A pod and the decision of the scheduler."""

    pod: Pod
    verdict: Placement | WouldWait

    @property
    def outcome(self) -> SimulatedOutcome:
        """The outcome of the decision."""
        if isinstance(self.verdict, Placement):
            return SimulatedOutcome.PLACED
        return SimulatedOutcome.WAITS if self.verdict.candidate is None else SimulatedOutcome.AFTER_EVICTIONS


class Totals(ValueObject):
    """
    Sums over all pods.

    ``tried`` are placed pods whose alignment was attempted, ``aligned`` those of them on the minimum number of NUMA
    nodes.
    """

    pods: int
    placed: int
    after_evictions: int
    nodes: int
    aligned: int
    tried: int


def simulate(arrivals: Sequence[TracePod], snapshot: Snapshot, label: str = "simulating") -> list[Simulated]:
    """
    Decide each pod in the order of arrival. A placed pod counts in the snapshot until it leaves.

    The pods of a group are decided on together when the last of them arrives, with members that wait in the cluster. A
    pod that does not fit at its arrival is not retried. In a terminal, a bar on stderr shows progress.
    """
    verdicts: dict[str, Placement | WouldWait] = {}
    leaving: list[tuple[float, str]] = []
    hidden = len(arrivals) < FEW or not sys.stderr.isatty()
    for arrival in arrivals:
        snapshot.expect(arrival.pod)
    keys_of = {arrival.pod.key.uid: snapshot.group_of(arrival.pod) for arrival in arrivals}
    last = {keys_of[arrival.pod.key.uid]: arrival for arrival in arrivals}  # the last member in the order of arrival
    leaves = {arrival.pod.key.uid: arrival.leaves for arrival in arrivals}
    with click.progressbar(arrivals, label=label, file=sys.stderr, hidden=hidden) as bar:
        for arrival in bar:
            while leaving and leaving[0][0] <= arrival.arrives:
                snapshot.release(heappop(leaving)[1])
            keys = keys_of[arrival.pod.key.uid]
            if keys and last[keys] is not arrival:
                continue
            decided = snapshot.place_group(arrival.pod) if keys else [(arrival.pod, _place(snapshot, arrival.pod))]
            for pod, verdict in decided:
                verdicts[pod.key.uid] = verdict
                if isinstance(verdict, Placement):
                    heappush(leaving, (leaves.get(pod.key.uid, inf), pod.key.uid))
    return [Simulated(arrival.pod, verdicts[arrival.pod.key.uid]) for arrival in arrivals]


def _place(snapshot: Snapshot, pod: Pod) -> Placement | WouldWait:
    """Decide on a pod without a group, and count its placement or its victims."""
    verdict = snapshot.decide(pod)
    if isinstance(verdict, Placement):
        snapshot.hold(pod, verdict)
    elif verdict.candidate is not None:
        snapshot.make_room(pod, verdict.candidate)
    return verdict


def totals_of(results: Sequence[Simulated]) -> Totals:
    """Return the sums over a simulation."""
    placements = [one.verdict for one in results if isinstance(one.verdict, Placement)]
    tried = [it for it in placements if it.alignment is not Alignment.NOT_ATTEMPTED]
    return Totals(
        pods=len(results),
        placed=len(placements),
        after_evictions=sum(one.outcome is SimulatedOutcome.AFTER_EVICTIONS for one in results),
        nodes=len({it.node for it in placements}),
        aligned=sum(it.alignment is Alignment.ALIGNED for it in tried),
        tried=len(tried),
    )
