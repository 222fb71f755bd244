"""
Pods on a fleet of kubelet-owned nodes whose exporters publish amounts only: how long pods wait, and how many a kubelet refuses.

The real engine in virtual time, 60 recorded machines under all kubelet configurations, the sandbox's kubelets and exporters
(``_world``).
"""

from collections.abc import Iterator
from random import Random
from time import process_time
from typing import Final

from bench.figure import Figure
from bench.fleet._shapes import arrivals, nodes
from bench.fleet._virtual_time import run
from bench.fleet._world import FleetWorld, Outcome

NODES: Final = 60
PODS: Final = 3_000
PERIOD: Final = 30.0
FULL: Final = 0.5
LIFETIME: Final = 300.0
PATIENCE: Final = 600.0


def figures() -> Iterator[Figure]:
    """One run, with the kubelets' options unpublished."""
    began = process_time()
    outcome = run(simulate())
    waits = sorted(outcome.waits)
    yield Figure("fleet: pods never placed", len(outcome.waiting), "", 0, note=f"{process_time() - began:.0f} s of CPU")
    longest = (
        f"{sum(wait > 1 for wait in waits)} of {len(waits):,} waited longer than 1 s, the longest {waits[-1]:.2f} s"
    )
    yield Figure("fleet: mean wait", sum(waits) / len(waits), "s", 1.0, note=longest)
    reasons = ", ".join(f"{count} {reason}" for reason, count in outcome.reasons.most_common())
    yield Figure("fleet: refusals of 1,000 pods", 1000 * outcome.refusals.total() / PODS, "", 2.0, note=reasons)
    yield Figure("fleet: refusals of one node", max(outcome.refusals.values(), default=0), "", 1)


async def simulate(*, published: bool = False, seed: int = 1) -> Outcome:
    """One run of the fleet; where ``published``, exporters publish the kubelets' options too."""
    dice = Random(seed)
    found = nodes(NODES, dice, published=published)
    return await FleetWorld(found, PERIOD, seed).run(list(arrivals(PODS, found, FULL, LIFETIME, dice)), PATIENCE)
