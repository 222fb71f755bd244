"""
Eviction of partial gangs: gangs with some bound members that cannot be completed for a configured time.

The API server may reject single binds, for example by an admission webhook, or a node may be lost between two binds. ``group_queue``
places the remaining members first. By default the bound members stay, as in kube-scheduler. A gang that had its minimal count once is
never evicted, because its members were lost later.
"""

from dataclasses import dataclass, field
from logging import getLogger
from typing import Final

from koord_numa.core.gangs.model import GangKey
from koord_numa.core.objects.request import Pod
from koord_numa.engine.gangs.pod_groups import COMPLETED
from koord_numa.engine.handle import Handle
from koord_numa.ports import ClusterError

log = getLogger(__name__)

INCOMPLETE: Final = "GangIncomplete"


@dataclass(slots=True)
class PartialGangs:
    """Partial gangs. ``_since`` has the time in monotonic seconds at which a gang was first observed as partial."""

    handle: Handle
    _since: dict[GangKey, float] = field(default_factory=dict)

    async def evict_overdue(self) -> None:
        """Evict the members of gangs that stay incomplete. Called once a second."""
        handle, now = self.handle, self.handle.dependencies.clock()
        groups = handle.pod_groups
        incomplete = [key for key in groups if groups.is_partial(key) and not groups.gang(key).satisfied]
        self._since = {key: self._since.get(key, now) for key in incomplete}
        settings = handle.settings.partial_gangs
        for key, since in list(self._since.items()) if settings.evict else ():
            if now - since >= settings.after_seconds and handle.dependencies.lease.fresh():
                self._since[key] = now  # evictions that fail are retried after the same time
                for pod in self._bound(key):
                    await self._evict(key, pod)

    def _bound(self, key: GangKey) -> list[Pod]:
        cache = self.handle.cache
        uids = (uid for uid, node in self.handle.pod_groups.gang(key).scheduled.items() if node != COMPLETED)
        found = (cache.pod(uid) for uid in uids if uid not in cache.assumed)
        return [pod for pod in found if pod is not None and not pod.deleting and not pod.mirror]

    async def _evict(self, key: GangKey, pod: Pod) -> None:
        """Evict a member, subject to its PodDisruptionBudgets. A failure is logged."""
        handle = self.handle
        message = f"Evicted because gang {key} cannot be completed"
        try:
            await handle.dependencies.binder.evict(pod.key, message)
        except ClusterError as error:
            log.info("pod %s of the incomplete gang %s is not evicted: %s", pod.key, key, error)
            return
        handle.dependencies.recorder.event(pod.key, warning=True, reason=INCOMPLETE, message=message)
