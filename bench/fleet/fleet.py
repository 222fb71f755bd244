"""
Pods on a fleet of kubelet-owned nodes whose exporters publish amounts only: how long pods wait, and how many a kubelet refuses.

The real engine in virtual time, with a restart and a fail-over: 60 recorded machines under all kubelet configurations, the sandbox's
kubelets, exporters and node agents (``_world``).
"""

import gc
from collections.abc import Iterator
from random import Random
from time import process_time
from typing import Final

from bench.figure import Figure
from bench.fleet._shapes import arrivals, nodes
from bench.fleet._virtual_time import run
from bench.fleet._world import FleetWorld, Outcome
from koord_numa.app.tasks import THRESHOLDS
from koord_numa.core.value_objects import replace

NODES: Final = 60
PODS: Final = 3_000
PODS_WITH_AGENTS: Final = 1_000
PERIOD: Final = 30.0
AGENT_PERIOD: Final = 1.0
FULL: Final = 0.5
LIFETIME: Final = 300.0
PATIENCE: Final = 600.0


def figures() -> Iterator[Figure]:
    """One run with the kubelets' options unpublished, and a shorter one with node agents."""
    gc.collect()
    gc.set_threshold(*THRESHOLDS)  # as the operator does
    began = process_time()
    outcome, steps = run(simulate())
    waits = sorted(outcome.waits)
    yield Figure("fleet: pods never placed", len(outcome.waiting), "", 0, note=f"{process_time() - began:.0f} s of CPU")
    longest = (
        f"{sum(wait > 1 for wait in waits)} of {len(waits):,} waited longer than 1 s, the longest {waits[-1]:.2f} s"
    )
    yield Figure("fleet: mean wait", sum(waits) / len(waits), "s", 1.0, note=longest)
    reasons = ", ".join(f"{count} {reason}" for reason, count in outcome.reasons.most_common())
    yield Figure("fleet: refusals of 1,000 pods", 1000 * outcome.refusals.total() / PODS, "", 2.0, note=reasons)
    yield Figure("fleet: refusals of one node", max(outcome.refusals.values(), default=0), "", 1)
    yield _longest("fleet", steps)
    outcome, steps = run(simulate(agents=True, pods=PODS_WITH_AGENTS))
    yield Figure("fleet with agents: pods never placed", len(outcome.waiting), "", 0)
    yield Figure("fleet with agents: refusals", outcome.refusals.total(), "", 0, note="; ".join(outcome.named))
    yield _longest("fleet with agents", steps)


def _longest(fleet: str, steps: list[float]) -> Figure:
    note = f"99.9 % of {len(steps):,} within {1000 * steps[len(steps) * 999 // 1000]:.0f} ms"
    return Figure(f"{fleet}: longest step of a decision or an event", 1000 * steps[-1], "ms", 50, note=note)


async def simulate(
    *, published: bool = False, agents: bool = False, pods: int = PODS, seed: int = 1
) -> tuple[Outcome, list[float]]:
    """
    Return the outcome of the fleet, and the sorted seconds of CPU of each event and each step of a decision.

    Where ``published``, exporters publish the kubelets' options too; with ``agents``, node agents publish the kubelets' exact state.
    """
    dice = Random(seed)
    found = [replace(one, kubelet_state=agents) for one in nodes(NODES, dice, published=published)]
    world = FleetWorld(found, AGENT_PERIOD if agents else PERIOD, seed)
    outcome = await world.run(list(arrivals(pods, found, FULL, LIFETIME, dice)), PATIENCE)
    return outcome, sorted(world.steps)
