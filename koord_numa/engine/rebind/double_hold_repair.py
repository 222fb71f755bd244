"""
Ends double holds on request (``repairDoubleHolds``): the younger of two pods that hold the same CPUs gets others, or is evicted.

One at a time, by the leader only. A node is locked while a pod of it gets other CPUs, so that no decision takes them meanwhile; the new
ones are counted from the pod as it was read back, not only when a watch shows them.
"""

from logging import getLogger
from typing import Final

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.rebind.from_ledger import Defaults, DoubleHold, replacement_cpus
from koord_numa.core.state.inventory import Inventory
from koord_numa.engine.conflicting_writers import HELD_TWICE
from koord_numa.engine.containment import Subject
from koord_numa.engine.rebind.context import RebindPorts
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import ClusterError
from koord_numa.settings import BackoffSettings, RepairDoubleHolds

log = getLogger(__name__)

LOOK_SECONDS: Final = 1.0
RETRY: Final = BackoffSettings(initial=2.0, max=60.0)
LOCKED: Final = "a double hold is being repaired"


class DoubleHoldRepair:
    """``run`` works on what ``ConflictingWriters`` has noticed, as configured."""

    def __init__(self, scheduler: Scheduler, ports: RebindPorts) -> None:
        self.repaired = 0
        self._scheduler = scheduler
        self._ports = ports
        self._failures: dict[DoubleHold, tuple[int, float]] = {}  # tries so far, and when the next is due

    async def run(self) -> None:
        """Look once a second until cancelled."""
        while True:
            await self._scheduler.dependencies.sleep(LOOK_SECONDS)
            await self.look()

    async def look(self) -> None:
        """Try to end every double hold that is due."""
        scheduler = self._scheduler
        conflicts = {each: node for node, found in scheduler.writers.double_holds.items() for each in found}
        # What has ended, by us or otherwise, is not counted any more.
        self._failures = {each: state for each, state in self._failures.items() if each in conflicts}
        how = scheduler.settings.repair_double_holds
        if how is RepairDoubleHolds.OFF or not scheduler.ready:
            return
        for conflict, node in conflicts.items():
            tries, due = self._failures.get(conflict, (0, 0.0))
            if scheduler.dependencies.clock() < due or not scheduler.dependencies.lease.fresh():
                continue
            pause = RETRY.pause(tries + 1, scheduler.dependencies.random())
            # The next try is due later from the first one on, also when this one raises.
            self._failures[conflict] = (tries + 1, scheduler.dependencies.clock() + pause)
            pod = self._chosen(conflict)
            if pod is None or pod.uid not in scheduler.cache.node_of:
                continue
            try:
                with scheduler.handle.quarantine.contained(Subject("node", node, node)):
                    await (
                        self._evict(pod, conflict)
                        if how is RepairDoubleHolds.EVICT
                        else self._move(pod, node, conflict)
                    )
            except ClusterError as error:
                log.warning("the double hold of %s on node %s cannot be repaired now: %s", pod, node, error)

    def _chosen(self, conflict: DoubleHold) -> PodKey | None:
        """The younger pod of ours: other schedulers' pods are left alone."""
        ours = self._scheduler.settings.scheduler_names
        # The younger first; if it is not ours, the older one may be moved.
        for key in (conflict.younger, conflict.older):
            pod = self._scheduler.cache.pod(key.uid)
            if pod is not None and pod.scheduler in ours and not pod.deleting:
                return key
        return None

    async def _evict(self, pod: PodKey, conflict: DoubleHold) -> None:
        await self._scheduler.dependencies.binder.evict(pod, str(conflict))
        self._done(pod, f"evicted, because {conflict}")

    async def _move(self, pod: PodKey, node: str, conflict: DoubleHold) -> None:
        """Raises every ``ClusterError`` of the writer; the next look tries again from what is true then."""
        cache = self._scheduler.cache
        info = cache.nodes[node]
        if info.locked:
            return  # a rebind works here; the next look comes after it
        self._scheduler.lock_node(node, LOCKED)
        try:
            # Read from the server: the CPUs that it has are changed only if they are those of the double hold.
            revision = await self._ports.writer.read_pod(pod)
            self._count(revision.pod)
            held = info.ledger.holdings.get(pod.uid)
            if held is None or not held.cpus & info.ledger.shared or not isinstance(info.inventory, Inventory):
                return
            cpus = replacement_cpus(info.inventory, info.booked, pod.uid, self._defaults())
            if cpus is None:
                self._tell(pod, f"{conflict}; there are not enough other CPUs on node {node}", warning=True)
                return
            await self._ports.writer.patch_cpus(revision, cpus)
            # Counted from the answer, so that no decision takes the CPUs before the watch shows them.
            self._count((await self._ports.writer.read_pod(pod)).pod)
            self._done(pod, f"CPUs {held.cpus} → {cpus}, because {conflict}")
        finally:
            self._unlock(node)

    def _unlock(self, node: str) -> None:
        """Unless a rebind has begun meanwhile, and locked the node for itself."""
        info = self._scheduler.cache.nodes.get(node)
        if info is not None and info.locked == LOCKED:
            self._scheduler.unlock_node(node)

    def _count(self, seen: Pod) -> None:
        """As it was read, unless the watch has told meanwhile that it is gone: nothing would ever tell again."""
        if seen.key.uid in self._scheduler.cache.node_of:
            self._scheduler.cache.observe_pod(None, seen)

    def _defaults(self) -> Defaults:
        profile = self._scheduler.settings.profiles[0]
        return Defaults(profile.default_cpu_bind_policy, profile.single_numa_node_exclusive)

    def _done(self, pod: PodKey, text: str) -> None:
        self.repaired += 1
        log.info("pod %s: %s", pod, text)
        self._tell(pod, text, warning=False)

    def _tell(self, pod: PodKey, text: str, *, warning: bool) -> None:
        self._scheduler.dependencies.recorder.event(pod, warning=warning, reason=HELD_TWICE, message=text)
