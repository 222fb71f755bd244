"""
What would make a waiting pod fit: the smallest change of its size, a policy it could relax, other settings of a kubelet, a pod that
leaves, or one rebind. Nothing is advised for a node that the pod's selectors exclude.

Theory. A refusal says what is wrong; people want to know what works. Each row of ``REMEDIES`` proposes changed pods or changed nodes, and a
proposal is given only after the scheduler's own rules have accepted it on the state of this moment: nothing is guessed from the
words of a refusal. Only the nodes that came closest are tried, so that the cost does not grow with the cluster.

Advice is for people and is never acted upon by the scheduler.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from typing import Final

from koord_numa.core.explain import closest_nodes
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.plan import RebindPlan, plan_rebind
from koord_numa.engine.scheduler import Scheduler
from koord_numa.view.advice.departures import departures
from koord_numa.view.advice.kubelets import kubelet_settings
from koord_numa.view.advice.policies import relaxed_policies
from koord_numa.view.advice.probe import Probe, Remedy
from koord_numa.view.advice.rebinds import one_rebind
from koord_numa.view.advice.situations import situations
from koord_numa.view.advice.sizes import changed_sizes
from koord_numa.view.advice.taints import tainted_nodes

__all__ = ["REMEDIES", "Remedy", "advise", "plan_here", "plan_in_thread"]

CLOSEST: Final = 8
"""So many nodes are tried, those that came closest."""

SHOWN: Final = 6
"""At most so many remedies are given for one pod."""

REMEDIES: Final = (changed_sizes, relaxed_policies, kubelet_settings, tainted_nodes, departures, situations)
"""Each takes a probe and yields remedies that were verified; a rebind comes on top, as planning it may take a while."""

Planner = Callable[[NodeLayout], Awaitable[RebindPlan]]


async def plan_here(layout: NodeLayout) -> RebindPlan:
    """Plan on the spot: for a command, which has nothing else to do."""
    return plan_rebind(layout)


async def plan_in_thread(layout: NodeLayout) -> RebindPlan:
    """Plan beside the event loop: a layout is immutable, and scheduling goes on meanwhile."""
    return await asyncio.to_thread(plan_rebind, layout)


async def advise(
    scheduler: Scheduler, pod: Pod, rejections: Mapping[str, Rejection], planner: Planner = plan_here
) -> Sequence[Remedy]:
    """Remedies for a pod that every node refuses, the most useful kinds first. Gives way to other tasks in between."""
    probe = Probe(scheduler, pod, rejections, tuple(closest_nodes(rejections, CLOSEST)))
    # By its text: two remedies may come to the same sentence.
    found = {remedy.text: remedy async for remedy in _all(probe, planner)}
    return list(found.values())[:SHOWN]


async def _all(probe: Probe, planner: Planner) -> AsyncIterator[Remedy]:
    for remedies in REMEDIES:
        await asyncio.sleep(0)
        for remedy in remedies(probe):
            yield remedy
            await asyncio.sleep(0)
    if (after := await one_rebind(probe, planner)) is not None:
        yield after
