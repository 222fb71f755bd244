"""Shared context of a rebind: the node's layout, writers, recorder, lease and deadline."""

from collections.abc import Callable
from itertools import count
from logging import getLogger
from time import time

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.rebind.from_ledger import Defaults, layout_of_ledger
from koord_numa.core.rebind.layout import NodeLayout, PinnedPod
from koord_numa.core.rebind.plan import Move, RebindAnswer, RebindRequest
from koord_numa.core.state.inventory import inventory
from koord_numa.core.value_objects import MutableObject, ValueObject, replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.containment import Subject
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import (
    ClusterError,
    Dependencies,
    Gone,
    Invalid,
    NotLeader,
    RebindWriter,
    Recorder,
    Unavailable,
)
from koord_numa.settings import Settings


def layout_of_node(state: Cache, name: str, settings: Settings, *, move_memory: bool = False) -> NodeLayout | str:
    """Return the layout of a node whose CPUs the scheduler allocates, or a sentence that states why there is none."""
    record = state.nodes.get(name)
    if record is None or record.node is None:
        return f"there is no node {name}"
    topology = record.topology
    if topology is None:
        return f"node {name} has no NodeResourceTopology"
    if topology.problem:
        return f"the topology of node {name} cannot be used: {topology.problem}"
    if topology.owner is CpuOwner.KUBELET:
        return f"the kubelet of node {name} chooses CPUs itself: they are not the scheduler's to change"
    if record.cpus_by_claim:
        return f"the CPUs of node {name} are allocated by claim (dra.cpu): an allocated claim is immutable, so its CPUs stay"
    if record.distrust:
        return f"node {name} cannot be trusted: {record.distrust}"
    # From the objects: the inventory of the record may be that of a kubelet or have CPUs by claim.
    offer = inventory(record.node, topology)
    if isinstance(offer, Rejection):
        return f"node {name} cannot be used: {offer.detail or offer.message}"
    if offer.machine is None:
        return f"node {name} publishes no CPU topology"
    profile = settings.profiles[0]
    # CPUs are allocated for pods of any profile; the defaults are those of the first profile.
    defaults = Defaults(profile.default_cpu_bind_policy, profile.single_numa_node_exclusive)
    staying = _fixed_pods(record, settings.scheduler_names)
    return layout_of_ledger(offer, record.booked, staying, defaults, move_memory=move_memory)


def _fixed_pods(record: NodeInfo, ours: tuple[str, ...]) -> frozenset[str]:
    """
    Return the UIDs of pods that a rebind does not move.

    These are pods of other schedulers, malformed pods, pods that terminate or are not bound yet, and pods with resource claims, whose CPUs
    were chosen together with devices. Amounts reserved for nominated pods are fixed too, because no other pod may be moved there.
    """
    staying = {uid for uid, pod in record.pods.items() if not _may_move(pod, ours)}
    return frozenset(staying.union(uid for uid in record.nominees if uid not in record.pods))


def _may_move(pod: Pod, ours: tuple[str, ...]) -> bool:
    unsure = pod.problem or pod.deleting or pod.finished or pod.assignment is None
    return pod.scheduler in ours and not unsure and not (pod.resource_claims or pod.extended_claim)


def pods_kept_by_claims(state: Cache, name: str) -> int:
    """Return the number of pods with exclusive CPUs that are not moved because of their resource claims."""
    record = state.nodes.get(name)
    pods = () if record is None else record.pods.values()
    return sum(
        bool((pod.resource_claims or pod.extended_claim) and pod.assignment and pod.assignment.cpus) for pod in pods
    )


def obstacle(now: NodeLayout | str, planned: NodeLayout, move: Move) -> str:
    """Return which change since planning forbids this step; empty when the step is still valid."""
    if isinstance(now, str):
        return now
    # Another topology: CPU ids may refer to other cores.
    if now.machine != planned.machine:
        return "the CPUs of the node have changed"
    index = next((index for index, pinned in enumerate(now.pods) if pinned.key == move.pod), None)
    if index is None:
        return f"pod {move.pod} is gone or may no longer be moved"
    # All properties of the pod that the plan relied on, compared as a whole.
    if now.pods[index] != _expected(planned, move):
        return f"pod {move.pod} was changed by another writer"
    # CPUs that are neither free nor held by the pod itself.
    taken = move.after - CpuSet(now.free(now.now)) - move.before
    if taken:
        return f"CPUs {taken} were given to another pod, or are kept for one"
    assigned = [*now.now[:index], move.after.bits, *now.now[index + 1 :]]
    # The current node with the overdraft at planning time allowed: a step may use what other pods released.
    allowed = replace(
        now,
        cpu_limit={numa: limit + planned.overdraft.get(numa, 0) for numa, limit in now.cpu_limit.items()},
        amount_limits={
            name: {numa: max(limit, planned.amounts.now.get((name, numa), 0)) for numa, limit in limits.items()}
            for name, limits in now.amount_limits.items()
        },
    )
    if (
        allowed.overdrawn(now.free(assigned))
        or allowed.overloaded(assigned)
        or _with_planned_cpus(now, planned).conflict_count(assigned).regression
    ):
        return f"new pods leave no room for {move.pod} on CPUs {move.after}"
    return ""


def _with_planned_cpus(now: NodeLayout, planned: NodeLayout) -> NodeLayout:
    """Return the current pods with their CPUs at planning time: no pod may have more conflicts than it had then."""
    former = {pinned.key: pinned.cpus for pinned in planned.pods}
    return replace(now, pods=tuple(replace(t, cpus=former.get(t.key, t.cpus)) for t in now.pods))


def _expected(planned: NodeLayout, move: Move) -> PinnedPod:
    pinned = next(pinned for pinned in planned.pods if pinned.key == move.pod)
    return replace(pinned, cpus=move.before)


log = getLogger(__name__)


def rebind_subject(request: RebindRequest) -> Subject:
    """Return the quarantine subject of a RebindResource."""
    return Subject("rebind", request.name, request.uid, str(request.generation))


class Stopped(Exception):
    """Raised between two steps to end the rebind. Completed steps are kept; the message states the reason."""


class RebindPorts(ValueObject):
    """Ports of rebinds. ``wall`` returns the time of day in seconds since the epoch, for deadlines that outlive a process."""

    writer: RebindWriter
    recorder: Recorder
    wall: Callable[[], float] = time


class RebindContext(MutableObject):
    """
    Context of one running rebind.

    ``wanted`` returns whether its RebindResource still exists, ``leads`` whether this replica may act. ``started`` is in seconds since the
    epoch, ``ends`` is the deadline by the engine's monotonic clock.
    """

    engine: Scheduler
    ports: RebindPorts
    request: RebindRequest
    wanted: Callable[[], bool]
    leads: Callable[[], bool]
    started: float = 0.0
    ends: float = float("inf")

    @property
    def state(self) -> Cache:
        """The cluster state of the engine."""
        return self.engine.cache

    @property
    def outside(self) -> Dependencies:
        """The engine's dependencies: clock, lease, and randomness."""
        return self.engine.dependencies

    def begin(self, started: float) -> None:
        """Count the deadline from ``started``, in seconds since the epoch."""
        self.started = started
        # The deadline uses the monotonic clock, so that clock changes do not affect it. A start in the future, after
        # the time of day was set back, does not extend the deadline.
        elapsed = max(0.0, self.ports.wall() - started)
        self.ends = self.outside.clock() + self.request.deadline - elapsed

    def layout(self) -> NodeLayout | str:
        """Return the current layout of the node, or why it cannot be repacked."""
        return layout_of_node(self.state, self.request.node, self.engine.settings, move_memory=self.request.move_memory)

    def must_lead(self) -> None:
        """Check the lease. Raises ``NotLeader``: another replica may work on the same node."""
        if not self.leads():
            raise NotLeader("the lease is no longer held")

    def may_go_on(self) -> None:
        """
        Check whether the rebind may continue.

        Raises ``NotLeader``, and ``Stopped`` after the deadline or when the RebindResource was deleted.
        """
        self.must_lead()
        if not self.wanted():
            raise Stopped("the RebindResource was deleted")
        if self.outside.clock() >= self.ends:
            raise Stopped(f"the deadline of {self.request.deadline} s has passed")

    async def pause(self, attempt: int, error: ClusterError | None = None) -> None:
        """Wait before the next attempt, at least as long as the server requested."""
        # The larger of the server's ``Retry-After`` and the own back-off.
        asked = (error.retry_after or 0.0) if isinstance(error, Unavailable) else 0.0
        backoff = self.engine.settings.api_backoff
        await self.outside.sleep(max(asked, backoff.pause(attempt, self.outside.random())))

    async def tell(self, answer: RebindAnswer) -> None:
        """Write the status and retry until it succeeds or the RebindResource is gone. Raises ``NotLeader``."""
        for attempt in count(1):
            self.must_lead()
            # The status is the only record of a rebind.
            if not self.wanted() or await self.try_to_tell(answer, attempt):
                return

    async def try_to_tell(self, answer: RebindAnswer, attempt: int) -> bool:
        """Write the status once. Return false after a pause if a later attempt may succeed."""
        try:
            await self.ports.writer.answer(self.request, answer)
        except Gone:
            return True
        except Invalid as error:
            log.warning("the status of RebindResource %s is not accepted: %s", self.request.name, error)
            return True
        except ClusterError as error:
            if attempt == 1:
                log.warning("RebindResource %s cannot be answered now: %s", self.request.name, error)
            await self.pause(attempt, error)
            return False
        return True
