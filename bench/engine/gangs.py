"""
Gangs through the scheduling loop: members that come, are decided on together and bound, against a binder that answers at once.

Wall time and CPU time of this process. ``gangs-decision`` is one decision about 1,000 equal members.
"""

import asyncio
import gc
import logging
import time
from collections.abc import Iterator
from typing import Final

from bench.engine._answering import AnsweringBinder, scheduler_with
from bench.engine._requests import pod_request
from bench.engine.loop import kubelet_nodes, plain_nodes
from bench.figure import Figure
from koord_numa.app.tasks import THRESHOLDS
from koord_numa.core.objects.gangs import Dialect, GangKey, GangRef, GangSpec, PodGroup
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.scheduling.gangs import Group, Member, Placed, decide_in_steps
from koord_numa.core.value_objects import replace
from koord_numa.engine import Scheduler
from koord_numa.engine.gangs.trial import ClusterTrial

NAMES: Final = ("gangs",)
SETS: Final = ((250, 4), (20, 50), (1, 1000))
"""How many gangs, and how many members each has."""
PATIENCE: Final = 120.0


def members(gang: int, size: int, cpus: int) -> list[Pod]:
    """The members of one gang, of whole CPUs."""
    key = GangKey(Dialect.KUBERNETES, "bench", f"gang-{gang:04}")
    request = replace(pod_request(cpus * 1000, cpus), gang=GangRef(key))
    names = (f"{key.name}-{number:04}" for number in range(size))
    return [Pod(PodKey("bench", name, f"uid-{name}"), request, scheduler="koord-numa") for name in names]


def cluster(nodes: int, *, kubelets: bool) -> tuple[AnsweringBinder, Scheduler]:
    """Nodes whose kubelets align pods to one NUMA node, or nodes without topology."""
    binder = AnsweringBinder()
    scheduler = scheduler_with(binder)
    (kubelet_nodes if kubelets else plain_nodes)(scheduler, nodes)
    # The first decision builds the table of nodes, which is not about gangs.
    scheduler.dry_run(Pod(PodKey("bench", "first", "first"), pod_request(1000, 1), scheduler="koord-numa"))
    # As the operator does after the initial lists.
    gc.collect()
    gc.freeze()
    gc.set_threshold(*THRESHOLDS)
    return binder, scheduler


def throughput(gangs: int, size: int, nodes: int, *, kubelets: bool) -> tuple[float, float, int]:
    """Pods a second, milliseconds of CPU per pod, and partial gangs seen after any bind of the last member of a decision."""
    binder, scheduler = cluster(nodes, kubelets=kubelets)
    pods = [members(gang, size, 1 + gang % 4) for gang in range(gangs)]
    count = gangs * size
    done = asyncio.Event()
    binder.on_bound = lambda: done.set() if len(binder.bound) == count else None

    async def work() -> tuple[float, float]:
        running = asyncio.create_task(scheduler.run())
        began, cpu = time.perf_counter(), time.process_time()
        for each in pods:
            key = each[0].request.gang
            if key is not None:
                scheduler.groups.observe_group("ADDED", PodGroup(key.key, GangSpec(size)))
            for pod in each:
                binder.pods[pod.key.uid] = pod
                scheduler.handlers.pending_pods.observe("ADDED", pod)
            await asyncio.sleep(0)
        async with asyncio.timeout(PATIENCE):
            await done.wait()
        took = time.perf_counter() - began, time.process_time() - cpu
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        return took

    wall, cpu = asyncio.run(work())
    partial = sum(0 < sum(pod.key.uid in binder.bound for pod in each) < size for each in pods)
    return count / wall, 1000 * cpu / count, partial


def decision(nodes: int, *, kubelets: bool) -> float:
    """Milliseconds of one decision about 1,000 equal members, when the class is known."""
    _, scheduler = cluster(nodes, kubelets=kubelets)
    pods = members(0, 1000, 2)
    found = []
    for _ in range(3):
        trial = ClusterTrial(scheduler.handle, {pod.key.uid: pod for pod in pods})
        began = time.perf_counter()
        with trial.begun():
            key = GangKey(Dialect.KUBERNETES, "bench", "gang-0000")
            group = Group(tuple(Member(pod.key.uid, key, trial.class_of(pod.key.uid)) for pod in pods), {key: 1000})
            steps = decide_in_steps(trial, group)
            try:
                while True:
                    next(steps)
            except StopIteration as end:
                answer = end.value
            found.append(time.perf_counter() - began)
        if not isinstance(answer, Placed):
            raise TypeError(f"{answer} is no placement")
    return min(found) * 1000


def figures() -> Iterator[Figure]:
    """Throughput by size of the gangs and of the cluster, then one decision."""
    logging.disable(logging.WARNING)
    for kubelets in (False, True):
        kind = "kubelets" if kubelets else "plain"
        for nodes in (1000, 5000):
            for gangs, size in SETS:
                name, note = f"gangs-{kind}-{nodes}-{gangs}x{size}", f"{nodes} nodes, {gangs} gangs of {size}"
                rate, cpu, partial = throughput(gangs, size, nodes, kubelets=kubelets)
                yield Figure(name, rate, "pods/s", 1000.0, "higher", note)
                yield Figure(f"{name}-cpu", cpu, "ms", 1.3, note=f"CPU per pod, {note}")
                yield Figure(f"{name}-partial", partial, "gangs", 0.0, note=note)
            yield Figure(
                f"gangs-{kind}-{nodes}-decision",
                decision(nodes, kubelets=kubelets),
                "ms",
                100.0,
                note="1,000 equal members",
            )
