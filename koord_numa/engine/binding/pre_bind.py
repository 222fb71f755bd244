"""The Reserve and PreBind stages: what must be true before a pod is bound, and the step that binds volumes."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from enum import Enum
from logging import getLogger
from typing import Final, Protocol

from koord_numa.core.fit.volume_binding import VolumePlan, plan_volumes
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.volumes import ClaimKey, PersistentVolumeClaim
from koord_numa.core.selectors import matches_term
from koord_numa.engine.cache.listers import VolumeLister
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.ports import ClusterError, Conflict, Gone, NotLeader, UnknownOutcome, VolumeWriter

log = getLogger(__name__)


class OnConflict(Enum):
    """What it means for the decision when ``do`` meets an object that has changed (``ports.Conflict``)."""

    DECIDE_AGAIN = "decide again"
    """The decision rests on the old object: undo, release, and schedule the pod again without a pause."""
    BACK_OFF = "back off"
    """Another writer is at work: undo, release, and schedule the pod again after its backoff."""


class PreBindFailed(ClusterError):
    """A PreBind step did not succeed; ``step`` is its name and the message says why. The pod is not bound."""

    def __init__(self, step: str, message: str, *, at_once: bool = False) -> None:
        super().__init__(f"{step}: {message}")
        self.step = step
        self.at_once = at_once


class PreBindStep(Protocol):
    """
    One row of the PreBind stage.

    ``name`` labels metrics and messages. ``timeout`` is the longest that ``do`` may take, in seconds, and bounds ``undo`` as well.
    Calls about one pod come in the order of the module docstring and never overlap; calls about different pods do.
    """

    @property
    def name(self) -> str:
        """As in ``VolumeBinding``."""
        ...

    @property
    def timeout(self) -> float:
        """Seconds."""
        ...

    @property
    def on_conflict(self) -> OnConflict:
        """What ``Conflict`` raised by ``do`` means."""
        ...

    def applies(self, pod: Pod, placement: Placement) -> bool:
        """Does this pod need the step? Cheap: it is asked for every pod that is placed."""
        ...

    def reserve(self, pod: Pod, placement: Placement) -> None:
        """
        Count what the pod is going to use (a volume, a device), so that no later decision uses it too. Synchronous, no I/O.

        Raises ``Conflict`` when that is not possible any more: the pod is scheduled again.
        """
        ...

    def unreserve(self, pod: Pod, placement: Placement) -> None:
        """Count it no more. Called once for each ``reserve`` unless the pod was bound."""
        ...

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        """The pod is bound (kube-scheduler's PostBind): called once instead of ``unreserve``. Synchronous, no I/O."""
        ...

    async def do(self, pod: Pod, placement: Placement) -> None:
        """
        Make it true in the API server, and return when it is.

        Every write is idempotent: after ``UnknownOutcome`` it is called again until ``timeout``. Raises any ``ClusterError``.
        """
        ...

    async def undo(self, pod: Pod, placement: Placement) -> None:
        """Take back what ``do`` wrote, as far as it got. Whatever it raises is logged and changes nothing."""
        ...


@contextmanager
def reserved(steps: Sequence[PreBindStep], pod: Pod, placement: Placement) -> Iterator[tuple[PreBindStep, ...]]:
    """
    Reserve by the rows that apply, and yield these; if the body raises, unreserve in reverse order, otherwise tell them of the bind.

    Raises ``PreBindFailed`` when a row cannot reserve.
    """
    chosen = tuple(step for step in steps if step.applies(pod, placement))
    if not chosen:  # as for most pods
        yield chosen
        return
    with ExitStack() as undo:
        # Only rows that were reserved are undone.
        for step in chosen:
            try:
                step.reserve(pod, placement)
            except Conflict as error:
                raise PreBindFailed(step.name, str(error), at_once=True) from error
            undo.callback(step.unreserve, pod, placement)
        yield chosen
        # The body succeeded, so that nothing is to be undone.
        undo.pop_all()
        for step in chosen:
            step.post_bind(pod, placement)


@asynccontextmanager
async def pre_bound(steps: Sequence[PreBindStep], pod: Pod, placement: Placement) -> AsyncIterator[None]:
    """
    Run ``do`` of these rows, one after the other; if one fails or the body raises, run ``undo`` of those begun in reverse order.

    Nothing is undone when this is cancelled: a bind that is cut off may still be carried out, and the pod then needs what was written.
    The pod's next cycle, here or in the next leader, meets it and goes on from there.

    Raises ``PreBindFailed``.
    """
    if not steps:
        yield
        return
    async with AsyncExitStack() as undo:
        try:
            for step in steps:
                undo.push_async_callback(_undo, step, pod, placement)
                await _do(step, pod, placement)
            yield
        except (asyncio.CancelledError, GeneratorExit):
            undo.pop_all()
            raise
        undo.pop_all()


async def _do(step: PreBindStep, pod: Pod, placement: Placement) -> None:
    try:
        async with asyncio.timeout(step.timeout):
            await _repeat_unknown(step, pod, placement)
    except TimeoutError as error:
        raise PreBindFailed(step.name, f"not done within {step.timeout:g} s") from error
    except Conflict as error:
        raise PreBindFailed(step.name, str(error), at_once=step.on_conflict is OnConflict.DECIDE_AGAIN) from error
    except ClusterError as error:
        raise PreBindFailed(step.name, str(error)) from error


REPEAT_SECONDS = 0.2
"""Pause before a step whose outcome is unknown runs again."""


async def _repeat_unknown(step: PreBindStep, pod: Pod, placement: Placement) -> None:
    while True:
        try:
            await step.do(pod, placement)
        except UnknownOutcome:
            await asyncio.sleep(REPEAT_SECONDS)
            continue
        return


async def _undo(step: PreBindStep, pod: Pod, placement: Placement) -> None:
    """An undo that fails leaves an object that the next cycle of the pod meets; it must not hide why the cycle failed."""
    try:
        async with asyncio.timeout(step.timeout):
            await step.undo(pod, placement)
    except (ClusterError, TimeoutError) as error:
        log.warning("pod %s: %s cannot be undone: %r", pod.key, step.name, error)


PASSED_OVER_SECONDS: Final = 120.0
"""For so long a node on which a claim was not bound is not chosen for it again: others are tried first."""

POLL_SECONDS: Final = 1.0
"""So often at least a wait looks whether its pod still exists."""

STRANDED: Final = "VolumeBoundElsewhere"
"""Event on a pod whose claim has a volume on a node that the pod did not go to."""


def volume_binding(handle: Handle) -> "VolumeBinding | None":
    """The step of one scheduler; ``None`` where nothing is ever bound."""
    writer = handle.dependencies.volumes
    return None if writer is None else VolumeBinding(handle, writer, handle.settings.volume_bind_timeout_seconds)


@dataclass(slots=True)
class VolumeBinding:
    """``PreBindStep`` of volumes. ``timeout`` is how long a claim may take to be bound, in seconds."""

    handle: Handle
    writer: VolumeWriter
    timeout: float
    name: str = "VolumeBinding"
    on_conflict: OnConflict = OnConflict.DECIDE_AGAIN
    _plans: dict[str, VolumePlan] = field(default_factory=dict)  # by pod uid, of cycles that are being carried out
    _first_seen: dict[ClaimKey, tuple[str, float]] = field(
        default_factory=dict
    )  # selected node and since when it is known

    @property
    def lister(self) -> VolumeLister:
        """What is known of volumes."""
        return self.handle.volumes

    def applies(self, pod: Pod, placement: Placement) -> bool:  # noqa: ARG002  (the protocol of all steps)
        """Is a claim of the pod not bound yet?"""
        return any(not claim.bound for claim in self._claims(pod))

    def reserve(self, pod: Pod, placement: Placement) -> None:
        """Take the volumes that the filter found on this node: the same facts give the same plan."""
        plan = plan_volumes(pod.request, self._node(placement), self.lister.storage())
        if isinstance(plan, Rejection):
            raise Conflict(f"volumes of pod {pod.key} on node {placement.node}: {plan.message}")
        # Kept by uid: ``do`` and ``undo`` act on what was reserved, and not on a new plan.
        self._plans[pod.key.uid] = plan
        self.lister.reserve(plan, placement.node)

    def unreserve(self, pod: Pod, placement: Placement) -> None:
        """The volumes are free for other pods again."""
        if (plan := self._plans.pop(pod.key.uid, None)) is not None:
            self.lister.unreserve(plan, placement.node)

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        """The pod is bound, and the claims say by themselves what they hold."""
        self.unreserve(pod, placement)

    async def do(self, pod: Pod, placement: Placement) -> None:
        """Write the plan, and return when every claim is bound. Raises ``Conflict`` when that cannot come about any more."""
        plan = self._plans[pod.key.uid]
        # Before any write: the pod may have gone while it waited for its turn.
        self._check_wanted(pod)
        # Existing volumes first: their binding takes a moment, provisioning may take minutes.
        for key, volume in plan.bindings:
            await self.writer.bind_volume(volume, self._claim(key))
        asked = {key: await self.writer.select_node(self._claim(key), placement.node) for key in plan.provisioned}
        while not self._all_bound(plan, placement, asked):
            await self.lister.change(POLL_SECONDS)
            self._check_wanted(pod)

    async def undo(self, pod: Pod, placement: Placement) -> None:
        """Take back what no claim has been bound by; say what cannot be taken back. The next leader goes on with what was begun."""
        # The next leader finds the annotation and goes on; taking it back would race with that.
        if self.handle.stopping or not self.handle.dependencies.lease.fresh():
            return
        plan = self._plans.get(pod.key.uid, VolumePlan())
        left = [
            key for key in _keys(plan) if (claim := self.lister.claims.items.get(key)) is not None and not claim.bound
        ]
        self.lister.fail(left, placement.node, PASSED_OVER_SECONDS)
        for key, volume in plan.bindings:
            if key in left:
                # Only what is not bound: a claim with a volume keeps it.
                await self._quietly(self.writer.release_volume(volume, self._claim(key)))
        for key in plan.provisioned:
            if key in left:
                await self._quietly(self.writer.clear_selected_node(self._claim(key), placement.node))
        for key in _keys(plan):
            claim = self.lister.claims.items.get(key)
            if claim is not None and claim.bound:
                self._say_stranded(pod, claim, placement.node)

    async def expire(self, waiting: Iterable[Pod]) -> None:
        """
        Give up nodes that were selected for claims of these waiting pods by an earlier process, and never came to anything.

        Without it a pod whose NUMA nodes are taken on that node would wait there for ever.
        """
        now, known = self.lister.clock(), self._first_seen
        # Made again at each look: claims that are bound or gone drop out by themselves.
        self._first_seen = {}
        for pod in waiting:
            for claim in self._claims(pod):
                if claim.bound or not claim.selected_node or self.lister.in_flight(claim.key):
                    continue
                node, since = known.get(claim.key, ("", now))
                # The time counts for one node: another one that was selected meanwhile starts its own.
                self._first_seen[claim.key] = (claim.selected_node, since if node == claim.selected_node else now)
                if node == claim.selected_node and now - since >= self.timeout:
                    with self.handle.quarantine.contained(subject_of(pod)):
                        await self._give_up(claim)

    async def _give_up(self, claim: PersistentVolumeClaim) -> None:
        self._first_seen.pop(claim.key, None)
        self.lister.fail([claim.key], claim.selected_node, PASSED_OVER_SECONDS)
        await self._quietly(self.writer.clear_selected_node(claim, claim.selected_node))

    async def _quietly(self, write: Awaitable[None]) -> None:
        """What cannot be taken back is met again by the next decision; it must not keep the rest from being taken back."""
        try:
            await write
        except ClusterError as error:
            log.warning("a volume binding cannot be taken back: %r", error)

    def _check_wanted(self, pod: Pod) -> None:
        """A claim may take minutes to be bound: is that still of use, and is it still for this process to wait?"""
        if self.handle.stopping or not self.handle.dependencies.lease.fresh():
            raise NotLeader("the lease is not held any more")
        if pod.key.uid not in self.handle.pending:
            raise Gone(f"pod {pod.key} waits no longer")

    def _all_bound(
        self, plan: VolumePlan, placement: Placement, asked: Mapping[ClaimKey, PersistentVolumeClaim]
    ) -> bool:
        """``asked`` are the claims that are being provisioned, as they were written."""
        node = self._node(placement)
        for key, volume in plan.bindings:
            if not self._is_bound(key, node):
                self._check_volume(key, volume)
        for key, written in asked.items():
            claim = self._claim(key)
            # A claim that the watch shows older than our own write still has the old node.
            taken_back = claim.selected_node != node.name and _is_newer(claim, written)
            if taken_back and not self._is_bound(key, node):
                raise Conflict(f"the provisioner gave up claim {claim.name} on node {node.name}")
        return all(self._is_bound(key, node) for key in _keys(plan))

    def _is_bound(self, key: ClaimKey, node: Node) -> bool:
        """Raises ``Conflict`` when the claim got a volume that is not reached from the node."""
        claim = self._claim(key)
        volume = self.lister.volumes.items.get(claim.volume) if claim.bound else None
        if volume is None:
            return False
        terms = volume.node_terms
        if terms is not None and not any(matches_term(term, node.name, node.labels) for term in terms):
            raise Conflict(
                f"claim {claim.name} was bound to volume {volume.name}, which node {node.name} does not reach"
            )
        return True

    def _check_volume(self, key: ClaimKey, name: str) -> None:
        volume = self.lister.volumes.items.get(name)
        if volume is None:
            raise Conflict(f"volume {name} was deleted before claim {key[1]} was bound")
        if volume.claim and not volume.belongs_to(self._claim(key)):
            raise Conflict(f"volume {name} was given to claim {volume.claim}")

    def _say_stranded(self, pod: Pod, claim: PersistentVolumeClaim, node: str) -> None:
        text = (
            f"claim {claim.name} was bound to volume {claim.volume} for node {node}, but the pod was not bound there: "
            "it can only go where that volume is reached; delete the claim to free it"
        )
        self.handle.dependencies.recorder.event(pod.key, warning=True, reason=STRANDED, message=text)

    def _claims(self, pod: Pod) -> Iterator[PersistentVolumeClaim]:
        for name in pod.request.constraints.claims:
            claim = self.lister.claims.items.get((pod.key.namespace, name))
            if claim is not None:
                yield claim

    def _claim(self, key: ClaimKey) -> PersistentVolumeClaim:
        claim = self.lister.claims.items.get(key)
        if claim is None:
            raise Conflict(f"claim {key[1]} was deleted")
        return claim

    def _node(self, placement: Placement) -> Node:
        info = self.handle.cache.nodes.get(placement.node)
        if info is None or info.node is None:
            raise Conflict(f"node {placement.node} was deleted")
        return info.node


def _is_newer(claim: PersistentVolumeClaim, written: PersistentVolumeClaim) -> bool:
    """The watch may lag behind a write. Resource versions of one object are ordered by number (KEP-5504)."""
    # Opaque versions are compared only where they are numbers.
    one, other = claim.resource_version, written.resource_version
    return one.isdigit() and other.isdigit() and int(one) > int(other)


def _keys(plan: VolumePlan) -> Iterator[ClaimKey]:
    yield from (key for key, _ in plan.bindings)
    yield from plan.provisioned
