"""
Reserve and PreBind stages, and the steps that bind volumes and write claims.

The step of claims is Reserve, PreBind and Unreserve of kube-scheduler's dynamicresources: ``reserve`` assumes the claims, ``do`` writes the
finalizer, then allocation and reservation at once, and ``undo`` releases the reservation.
"""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AsyncExitStack, ExitStack, asynccontextmanager, contextmanager, suppress
from functools import partial
from logging import getLogger
from typing import Final, Protocol
from uuid import uuid4

from koord_numa.core.claims import IN_MEMORY
from koord_numa.core.fit.volumes import VolumePlan, plan_volumes
from koord_numa.core.objects.claims import NEW_SHARE, ClaimAmounts
from koord_numa.core.objects.constraints import matches_term
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.volumes import ClaimKey, PersistentVolumeClaim
from koord_numa.core.value_objects import MutableObject, value_field
from koord_numa.engine.cache.listers import VolumeLister
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.claims.pod_claims import ClaimWork, PodClaimResolver, claim_work, is_nowhere, still_waits
from koord_numa.engine.handle import Handle, subject_of
from koord_numa.ports import ClaimWriter, ClusterError, Conflict, Gone, NotLeader, UnknownOutcome, VolumeWriter

log = getLogger(__name__)


class PreBindFailed(ClusterError):
    """Raised when a PreBind step fails. The message has its name and the reason. The pod is not bound."""

    def __init__(self, step: str, message: str, *, at_once: bool = False) -> None:
        super().__init__(f"{step}: {message}")
        self.at_once = at_once


class PreBindStep(Protocol):
    """
    Step of the PreBind stage.

    ``name`` labels metrics and messages. ``timeout`` is the maximum duration of ``do`` in seconds, and limits ``undo`` as well. Calls for
    the same pod are made in the order of ``binding_cycle`` and never overlap; calls for different pods do.
    """

    @property
    def name(self) -> str:
        """Name of the step, as in ``VolumeBinding``."""
        ...

    @property
    def timeout(self) -> float:
        """Maximum duration in seconds."""
        ...

    def applies(self, pod: Pod, placement: Placement) -> bool:
        """Return whether this pod needs the step. Must be cheap: called for every placed pod."""
        ...

    def reserve(self, pod: Pod, placement: Placement) -> None:
        """
        Count the volumes or devices that the pod is going to use, so that no later decision uses them. Synchronous, no I/O.

        Raises ``Conflict`` when that is not possible any more: the pod is scheduled again.
        """
        ...

    def unreserve(self, pod: Pod, placement: Placement) -> None:
        """Release the reservation. Called once for each ``reserve`` unless the pod was bound."""
        ...

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        """Process the bind (PostBind of kube-scheduler): called once instead of ``unreserve``. Synchronous, no I/O."""
        ...

    async def do(self, pod: Pod, placement: Placement) -> None:
        """
        Write the changes to the API server and return when they are effective.

        Every write is idempotent: after ``UnknownOutcome`` it is called again until ``timeout``. Raises any ``ClusterError``.
        """
        ...

    async def undo(self, pod: Pod, placement: Placement) -> None:
        """Revert what ``do`` wrote so far. Exceptions are logged and have no other effect."""
        ...


@contextmanager
def reserved(steps: Sequence[PreBindStep], pod: Pod, placement: Placement) -> Iterator[tuple[PreBindStep, ...]]:
    """
    Reserve with the steps that apply, and yield these steps.

    If the body raises an exception, unreserve in reverse order, otherwise call ``post_bind``. Raises ``PreBindFailed`` when a step cannot
    reserve.
    """
    chosen = tuple(step for step in steps if step.applies(pod, placement))
    if not chosen:  # true for most pods
        yield chosen
        return
    with ExitStack() as undo:
        # Only steps that have reserved are undone.
        for step in chosen:
            try:
                step.reserve(pod, placement)
            except Conflict as error:
                raise PreBindFailed(step.name, str(error), at_once=True) from error
            undo.callback(step.unreserve, pod, placement)
        yield chosen
        # The body succeeded: nothing is undone.
        undo.pop_all()
        for step in chosen:
            step.post_bind(pod, placement)


@asynccontextmanager
async def pre_bound(steps: Sequence[PreBindStep], pod: Pod, placement: Placement) -> AsyncIterator[None]:
    """
    Run ``do`` of these steps in sequence. If a step or the body fails, run ``undo`` of the started steps in reverse order.

    Nothing is undone on cancellation: a bind that was interrupted may still be executed, and the pod then needs what was written. The pod's
    next cycle, in this process or in the next leader, continues from there.

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
        # The decision used an object that has changed meanwhile: decide again without a pause.
        raise PreBindFailed(step.name, str(error), at_once=True) from error
    except ClusterError as error:
        raise PreBindFailed(step.name, str(error)) from error


REPEAT_SECONDS = 0.2
"""Pause in seconds before a step with an unknown outcome runs again."""


async def _repeat_unknown(step: PreBindStep, pod: Pod, placement: Placement) -> None:
    while True:
        try:
            await step.do(pod, placement)
        except UnknownOutcome:
            await asyncio.sleep(REPEAT_SECONDS)
            continue
        return


async def _undo(step: PreBindStep, pod: Pod, placement: Placement) -> None:
    """Undo one step. A failure must not hide why the cycle failed; the pod's next cycle handles the remaining object."""
    try:
        async with asyncio.timeout(step.timeout):
            await step.undo(pod, placement)
    except (ClusterError, TimeoutError) as error:
        log.warning("pod %s: %s cannot be undone: %r", pod.key, step.name, error)


PASSED_OVER_SECONDS: Final = 120.0
"""Seconds for which a node is not chosen again for a claim that could not be bound there."""

POLL_SECONDS: Final = 1.0
"""Maximum seconds between checks whether the pod still exists."""

STRANDED: Final = "VolumeBoundElsewhere"
"""Event reason for a pod whose claim got a volume on a node that the pod was not bound to."""


def volume_binding(handle: Handle) -> "VolumeBinding | None":
    """Return the volume step of a scheduler; ``None`` without a volume writer."""
    writer = handle.dependencies.volumes
    return None if writer is None else VolumeBinding(handle, writer, handle.settings.volume_bind_timeout_seconds)


class VolumeBinding(MutableObject):
    """``PreBindStep`` of volumes. ``timeout`` is the maximum time for binding a claim, in seconds."""

    handle: Handle
    writer: VolumeWriter
    timeout: float
    name: str = "VolumeBinding"
    _plans: dict[str, VolumePlan] = value_field(default_factory=dict)  # by pod UID, for cycles in progress
    _first_seen: dict[ClaimKey, tuple[str, float]] = value_field(
        default_factory=dict
    )  # selected node, and since when it is known

    @property
    def lister(self) -> VolumeLister:
        """Lister of the storage objects."""
        return self.handle.volumes

    def applies(self, pod: Pod, placement: Placement) -> bool:  # noqa: ARG002  (the protocol of all steps)
        """Return whether a claim of the pod is not bound yet."""
        return any(not claim.bound for claim in self._claims(pod))

    def reserve(self, pod: Pod, placement: Placement) -> None:
        """Reserve the volumes that the filter chose on this node: equal states give equal plans."""
        plan = plan_volumes(pod.request, self._node(placement), self.lister.storage())
        if isinstance(plan, Rejection):
            raise Conflict(f"volumes of pod {pod.key} on node {placement.node}: {plan.message}")
        # Stored by UID: ``do`` and ``undo`` use the reserved plan, not a new plan.
        self._plans[pod.key.uid] = plan
        self.lister.reserve(plan, placement.node)

    def unreserve(self, pod: Pod, placement: Placement) -> None:
        """Release the volumes for other pods."""
        if (plan := self._plans.pop(pod.key.uid, None)) is not None:
            self.lister.unreserve(plan, placement.node)

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        """Release the reservation, because the bound claims show the volumes."""
        self.unreserve(pod, placement)

    async def do(self, pod: Pod, placement: Placement) -> None:
        """Write the plan, and return when every claim is bound. Raises ``Conflict`` when that is not possible any more."""
        plan = self._plans[pod.key.uid]
        # Before any write: the pod may have been deleted while it waited.
        self._check_wanted(pod)
        # Existing volumes first: they are bound quickly, while provisioning may take minutes.
        for key, volume in plan.bindings:
            await self.writer.bind_volume(volume, self._claim(key))
        asked = {key: await self.writer.select_node(self._claim(key), placement.node) for key in plan.provisioned}
        while not self._all_bound(plan, placement, asked):
            await self.lister.change(POLL_SECONDS)
            self._check_wanted(pod)

    async def undo(self, pod: Pod, placement: Placement) -> None:
        """Revert what no claim is bound to, and report what cannot be reverted. The next leader continues started bindings."""
        # The next leader finds the annotation and continues; reverting it would race with that.
        if self.handle.stopping or not self.handle.dependencies.lease.fresh():
            return
        plan = self._plans.get(pod.key.uid, VolumePlan())
        left = [
            key for key in _keys(plan) if (claim := self.lister.claims.items.get(key)) is not None and not claim.bound
        ]
        self.lister.fail(left, placement.node, PASSED_OVER_SECONDS)
        for key, volume in plan.bindings:
            if key in left:
                # Only unbound claims: a claim with a volume keeps it.
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
        Clear nodes that an earlier process selected for claims of these waiting pods, if the claims were not bound in time.

        Otherwise a pod whose NUMA nodes are in use on that node would wait there forever.
        """
        now, known = self.lister.clock(), self._first_seen
        # Rebuilt at each call: claims that are bound or gone are dropped.
        self._first_seen = {}
        for pod in waiting:
            for claim in self._claims(pod):
                if claim.bound or not claim.selected_node or self.lister.in_flight(claim.key):
                    continue
                node, since = known.get(claim.key, ("", now))
                # The time counts for one node: a node selected meanwhile starts again.
                self._first_seen[claim.key] = (claim.selected_node, since if node == claim.selected_node else now)
                if node == claim.selected_node and now - since >= self.timeout:
                    with self.handle.quarantine.contained(subject_of(pod)):
                        self._first_seen.pop(claim.key, None)
                        self.lister.fail([claim.key], claim.selected_node, PASSED_OVER_SECONDS)
                        await self._quietly(self.writer.clear_selected_node(claim, claim.selected_node))

    async def _quietly(self, write: Awaitable[None]) -> None:
        """Await the write and log a failure. The next decision handles the remaining object; other writes continue."""
        try:
            await write
        except ClusterError as error:
            log.warning("a volume binding cannot be reverted: %r", error)

    def _check_wanted(self, pod: Pod) -> None:
        """
        Check that the pod is still pending and this process still leads, because binding a claim may take minutes.

        Raises ``NotLeader`` and ``Gone``.
        """
        if self.handle.stopping or not self.handle.dependencies.lease.fresh():
            raise NotLeader("the lease is no longer held")
        if pod.key.uid not in self.handle.pending:
            raise Gone(f"pod {pod.key} no longer waits")

    def _all_bound(
        self, plan: VolumePlan, placement: Placement, asked: Mapping[ClaimKey, PersistentVolumeClaim]
    ) -> bool:
        """Return whether all claims are bound. ``asked`` are the claims being provisioned, as written."""
        node = self._node(placement)
        for key, volume in plan.bindings:
            if not self._is_bound(key, node):
                self._check_volume(key, volume)
        for key, written in asked.items():
            claim = self._claim(key)
            # A claim that the watch shows in a version before the own write still has the old node.
            taken_back = claim.selected_node != node.name and _is_newer(claim, written)
            if taken_back and not self._is_bound(key, node):
                raise Conflict(f"the provisioner gave up claim {claim.name} on node {node.name}")
        return all(self._is_bound(key, node) for key in _keys(plan))

    def _is_bound(self, key: ClaimKey, node: Node) -> bool:
        """Return whether the claim is bound. Raises ``Conflict`` when its volume is not accessible from the node."""
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
            "the pod can only go where the volume is accessible; delete the claim to free it"
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
    """Return whether the claim is newer than the own write. Resource versions of one object are ordered by number (KEP-5504)."""
    # Versions are compared only if they are numbers.
    one, other = claim.resource_version, written.resource_version
    return one.isdigit() and other.isdigit() and int(one) > int(other)


def _keys(plan: VolumePlan) -> Iterator[ClaimKey]:
    yield from (key for key, _ in plan.bindings)
    yield from plan.provisioned


TIMEOUT: Final = 600.0
"""Maximum seconds for binding conditions of devices (DynamicResourcesArgs.bindingTimeout)."""

SHOWN_SECONDS: Final = 30.0
"""Maximum seconds until a created claim is observed. ``waitForExtendedClaimInAssumeCache`` of kube-scheduler continues after 120."""

StillWaits = Callable[[PodKey], Awaitable[bool]]
"""Returns whether a pod certainly has no node and this process may bind it."""


class ClaimPreBind(MutableObject):
    """
    ``PreBindStep`` of resource claims.

    An allocation stays when the bind fails: the next decision about the pod uses it, and ``deallocation`` releases it if the pod fits
    nowhere because of it. After a restart the claims show how far the cycle had come.

    The claim for a pod's extended resources is created first and deleted by ``undo``. If an interrupted cycle left such a claim, it is
    found by its owner, the pod, and used by the next cycle if its requests match.

    A reservation is released only if the pod certainly has no node: the bind may have failed because another leader bound the pod with the
    same reservation, and a kubelet starts no pod without it. Therefore the claim is read, then this process must still lead and the pod
    have no node, then exactly the version that was read is written. A later leader, or the pod's next cycle, writes the claim before it
    binds, so that a late request has no effect.
    """

    lister: ClaimLister
    resolver: PodClaimResolver
    writer: ClaimWriter
    waits: StillWaits
    nowhere: StillWaits  # the same for a pod that may be gone
    name: str = "DynamicResources"
    timeout: float = TIMEOUT
    _cycles: dict[str, list[ClaimWork]] = value_field(default_factory=dict)  # by pod UID

    def applies(self, pod: Pod, placement: Placement) -> bool:
        """Return whether the pod has claims, extended resources by claim, or an obsolete claim for extended resources in its status."""
        return bool(pod.resource_claims or placement.extended or pod.extended_claim)

    def reserve(self, pod: Pod, placement: Placement) -> None:
        """Count the devices of the decision. Raises ``Conflict`` when the claims differ from those of the decision."""
        # Another number of claims, or a claim assumed by another pod, invalidates the decision.
        work = claim_work(self.lister, self.resolver, pod, placement)
        self._cycles[pod.key.uid] = work
        for each in work:
            if each.allocation is not None:
                each.allocation = each.allocation.with_share_ids(
                    [str(uuid4()) for it in each.allocation.results if it.share_id == NEW_SHARE]
                )
                gang = pod.request.gang
                self.lister.assume(each.claim, each.allocation, pod.key.uid, None if gang is None else gang.key)

    def unreserve(self, pod: Pod, placement: Placement) -> None:  # noqa: ARG002  (the protocol of all steps)
        """Release devices whose allocation was not written."""
        for each in self._cycles.pop(pod.key.uid, ()):
            if each.allocation is not None:
                self.lister.forget_assumed(each.claim, pod.key.uid)

    def post_bind(self, pod: Pod, placement: Placement) -> None:
        """Release the assumption, because the written allocation counts."""
        self.unreserve(pod, placement)

    async def do(self, pod: Pod, placement: Placement) -> None:
        """Write allocations and reservations, then wait until drivers report the binding conditions of the devices."""
        work = self._cycles[pod.key.uid]
        for each in work:
            if each.in_memory:
                await self._create(pod, each)
            if each.awaited:
                await self._wait_for_devices(each)
            # The response is processed at once: the next write may depend on it.
            if each.group is None:
                written = await self.writer.reserve(each.claim, pod.key, each.allocation)
            else:
                written = await self.writer.reserve(each.claim, pod.key, each.allocation, each.group)
            self.lister.observe_written(written)
        await self._map_requests(pod, work)
        if placement.claim_amounts:
            await self.writer.write_amounts(pod.key, _named(pod, work, placement))
        while not self._devices_ready(work):
            await self.lister.change()

    async def undo(self, pod: Pod, placement: Placement) -> None:
        """Release the reservations independently, so that a failure does not affect the others."""
        if placement.claim_amounts:
            with suppress(ClusterError):
                # Clear the amounts of a pod that certainly has no node.
                if await self.waits(pod.key):
                    await self.writer.write_amounts(pod.key, ())
        for each in self._cycles.get(pod.key.uid, ()):
            try:
                await self._take_back(pod, each)
            except ClusterError as error:
                log.warning("the reservation of claim %s cannot be removed: %r", each.claim, error)

    async def _wait_for_devices(self, each: ClaimWork) -> None:
        """Wait until the cycle of another pod of the group has written the allocation. Raises ``Conflict`` when it has ended before."""
        claim = each.claim
        while True:
            current = self.lister.claim((claim.namespace, claim.name))
            if current is not None and current.uid == claim.uid and current.allocation is not None:
                return
            if current is None or current.uid != claim.uid or claim.uid not in self.lister.assumed:
                raise Conflict(f"claim {claim} got no devices for another pod of the group")
            await self.lister.change()

    async def _create(self, pod: Pod, each: ClaimWork) -> None:
        """Create the claim for extended resources and wait until the watch shows it, so that no older list can remove it."""
        created = await self.writer.create(pod.key, each.claim.spec.requests)
        self.lister.assume_created(each.claim, created)
        each.claim = created
        try:
            async with asyncio.timeout(SHOWN_SECONDS):
                while not self.lister.shows(created):
                    await self.lister.change()
        except TimeoutError:
            raise Conflict(f"claim {created} was created and is not shown after {SHOWN_SECONDS:g} s") from None

    async def _map_requests(self, pod: Pod, work: Sequence[ClaimWork]) -> None:
        """Write the claim of the extended resources to the pod's status for the kubelet; remove a former claim."""
        for each in work:
            if each.extended is not None:
                await self.writer.map_requests(pod.key, each.claim.name, each.extended.mappings)
                return
        if pod.extended_claim:
            await self.writer.map_requests(pod.key, "", ())

    async def _take_back(self, pod: Pod, each: ClaimWork) -> None:
        if each.group is not None:
            return  # the reservation is that of the group, whose other pods may need it
        if each.extended is None:
            await self.writer.release(each.claim, pod.key, partial(self.waits, pod.key))
            return
        # If the response to its creation was lost, it is known by its owner only.
        claim = self.lister.extended.of(pod.key.uid) if each.in_memory else each.claim
        if claim is not None:
            await self.writer.delete(claim, partial(self.nowhere, pod.key))

    def _devices_ready(self, work: Sequence[ClaimWork]) -> bool:
        """
        Return whether all binding conditions are met.

        Raises ``Conflict`` when a device reports a failure condition, or a claim lost its devices.
        """
        ready = True
        for claim in (each.claim for each in work):
            current = self.lister.claim((claim.namespace, claim.name))
            if current is None or current.uid != claim.uid or current.allocation is None:
                # Another UID: deleted and created again while waiting for drivers.
                raise Conflict(f"claim {claim} got deallocated elsewhere in the meantime")
            for result in current.allocation.results:
                failed = [it for it in result.binding_failure_conditions if (result.device, it) in current.conditions]
                if failed:
                    raise Conflict(f"claim {claim}: device {result.device} reports {failed[0]}")
                # All conditions of all devices; missing conditions are awaited.
                ready = ready and all((result.device, it) in current.conditions for it in result.binding_conditions)
        return ready


def _named(pod: Pod, work: Sequence[ClaimWork], placement: Placement) -> list[tuple[str, ClaimAmounts]]:
    """Return the amounts with the names of their claims, which are known by now."""
    names = {entry.name: entry.claim for entry in pod.resource_claims if entry.needed}
    for each in work:
        if each.extended is not None:
            names[IN_MEMORY] = each.claim.name
    return [(names.get(amounts.entry, amounts.entry), amounts) for amounts in placement.claim_amounts]


def dynamic_resources(handle: Handle) -> ClaimPreBind | None:
    """Return the claim step of this process; ``None`` where claims are disabled."""
    writer = handle.dependencies.claim_writer
    if writer is None:
        return None
    outside = handle.dependencies
    return ClaimPreBind(
        handle.selector.claims,
        handle.resource_claims,
        writer,
        partial(still_waits, outside),
        partial(is_nowhere, outside),
    )
