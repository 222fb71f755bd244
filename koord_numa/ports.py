"""Protocols between the engine and the outside world, and the errors of requests to the cluster.

ClusterError
├── Conflict        the object has changed or is bound: read it again
├── Gone            the object does not exist: forget it
├── Unavailable     nothing was done (429, 503, no connection): back off, at least ``retry_after`` seconds if given
├── UnknownOutcome  a write has no clear response (timeout, 500, 502, 504): keep the assumed pod, read it back
├── NotLeader       the lease ends before the write would: nothing was sent, another replica may be deciding
├── Unauthenticated the credentials are not accepted: back off until they are renewed
├── Forbidden       an RBAC rule is missing: permanent until an operator grants ``rule``
└── Invalid         the server rejects the request itself: a bug or malformed data, never retried unchanged
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from random import SystemRandom
from time import monotonic
from typing import TYPE_CHECKING, Final, NamedTuple, Protocol, TypeVar

from koord_numa.core.value_objects import ValueObject

# The types of the core are not imported at run time: commands need the errors, and start faster without the core.
if TYPE_CHECKING:
    from koord_numa.core.claims import RequestMapping
    from koord_numa.core.cpuset import CpuSet
    from koord_numa.core.objects.claims import Allocation, ClaimAmounts, DeviceRequest, ResourceClaim
    from koord_numa.core.objects.gangs import GroupStatus, PodGroup
    from koord_numa.core.objects.request import Pod, PodKey
    from koord_numa.core.objects.verdicts import Placement
    from koord_numa.core.objects.volumes import PersistentVolumeClaim
    from koord_numa.core.rebind.layout import NumaAmounts
    from koord_numa.core.rebind.plan import PodRevision, RebindAnswer, RebindRequest

StillAllowed = Callable[[], Awaitable[bool]]
"""Returns whether the precondition of a write still holds: this process leads, and the pod has no node."""


class ClaimWriter(Protocol):
    """Allocates and reserves ResourceClaims. Every call is idempotent.

    Raises ``Conflict`` when a change of the claim invalidates the decision, ``Gone`` when the claim does not exist or
    was re-created, and every other ``ClusterError``.
    """

    async def reserve(
        self, claim: ResourceClaim, pod: PodKey, allocation: Allocation | None, group: PodGroup | None = None
    ) -> ResourceClaim:
        """Write the allocation, if it is not there yet, and reserve the claim for the pod, or for its PodGroup.

        Returns the written claim.

        The claim is written even if both exist, so that a late ``release`` or ``deallocate`` has no effect.
        """
        ...

    async def release(self, claim: ResourceClaim, pod: PodKey, allowed: StillAllowed) -> None:
        """Remove the pod's reservation and keep the allocation.

        Writes the version that was read before ``allowed`` was checked.
        """
        ...

    async def deallocate(self, claim: ResourceClaim, pod: str, allowed: StillAllowed) -> ResourceClaim:
        """Remove an allocation that no other pod or PodGroup than ``pod`` (a uid) uses.

        Returns the written claim. Otherwise as ``release``.
        """
        ...

    async def create(self, pod: PodKey, requests: Sequence[DeviceRequest]) -> ResourceClaim:
        """Create the claim for a pod's extended resources and return it.

        An existing claim of this pod is returned unchanged.

        Raises ``Conflict`` when the existing claim has other requests or is being deleted.
        """
        ...

    async def delete(self, claim: ResourceClaim, allowed: StillAllowed) -> None:
        """Delete a claim for extended resources if ``allowed``.

        A missing claim is no error. Otherwise as ``release``.
        """
        ...

    async def map_requests(self, pod: PodKey, claim: str, mappings: Sequence[RequestMapping]) -> None:
        """Write the claim (by name) for extended resources and its container mappings to the pod's status.

        An empty name removes the mapping. Raises ``Invalid`` when the API server drops the field.
        """
        ...

    async def write_amounts(self, pod: PodKey, amounts: Sequence[tuple[str, ClaimAmounts]]) -> None:
        """Write the node resources that each claim (by name) uses to the pod's status. They are never removed."""
        ...


T_contra = TypeVar("T_contra", contravariant=True)

DELETED: Final = "DELETED"
"""Event type of a deleted object. Every other type, including ``None``, means that the object exists as shown."""


class EventHandler(Protocol[T_contra]):
    """Consumer of objects of a resource, as client-go's ``ResourceEventHandler``.

    An informer, or Kopf with a resync, calls it. Level-based: events may be late, merged, repeated or out of order
    between resources. All methods are synchronous and cheap.
    """

    def replace(self, objects: Iterable[T_contra]) -> None:
        """Process a complete list. Objects that are not in it are deleted."""
        ...

    def observe(self, event: str | None, obj: T_contra) -> None:
        """Process the current state of an object, or its last state with ``DELETED``.

        ``None`` marks an item of a list.
        """
        ...

    def synced(self) -> None:
        """Process the completion of the first list. Called once."""
        ...


class ClusterError(Exception):
    """A request to the cluster failed."""


class Conflict(ClusterError):
    """The object is not in the state that the request assumes (409, failed precondition)."""


class Gone(ClusterError):
    """The object does not exist (404)."""


class Unavailable(ClusterError):
    """Nothing was done and the request may be retried.

    429, 503, or a connection that failed before the request was sent. For reads also every other 5xx and a lost
    response.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnknownOutcome(ClusterError):
    """A write may or may not have been carried out.

    It timed out, the connection failed after it was sent, or the response was 500, 502 or 504. With these statuses a
    proxy or etcd may have timed out on a write that succeeded.
    """


class Forbidden(ClusterError):
    """The server denies permission (403). ``rule`` is the missing RBAC rule: ``create pods/binding``."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule

    def __str__(self) -> str:
        """Return the message and the missing rule."""
        return f"{super().__str__()}; missing rule: {self.rule}"


class Unauthenticated(ClusterError):
    """The server rejects the credentials (401): they are wrong or have expired, and no RBAC rule helps."""


class NotLeader(ClusterError):
    """The lease is lost or ends too soon for this write: another replica may be deciding. Nothing was sent."""


class Invalid(ClusterError):
    """The server rejects the request as invalid (400, 422)."""


class Binder(Protocol):
    """Binds pods and writes their status.

    Every call has the uid as a precondition, so a re-created pod is never changed.
    """

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        """Bind a pod and merge the annotations into it in a single call.

        Raises ``Conflict`` (already bound, terminating, gated, or another uid), ``Gone``, ``Unavailable``,
        ``UnknownOutcome``, ``Forbidden``, ``Invalid``.
        """
        ...

    async def read_pod(self, pod: PodKey) -> Pod:
        """Return the current pod. Raises ``Gone`` also when the uid differs."""
        ...

    async def set_unschedulable(self, pod: PodKey, message: str) -> None:
        """Set the condition PodScheduled=False with reason Unschedulable."""
        ...

    async def nominate(self, pod: PodKey, node: str, why: str = "") -> Pod:
        """Set the nominated node (empty: none) in the status, with the condition if ``why``.

        Returns the updated pod.
        """
        ...

    async def evict(self, pod: PodKey, message: str) -> None:
        """Evict a preemption victim within its disruption budgets.

        Raises ``Unavailable`` when a budget is exhausted.
        """
        ...

    async def delete(self, pod: PodKey) -> None:
        """Delete a preemption victim without checking disruption budgets. Raises ``Gone`` when the uid differs."""
        ...


class ObjectReference(NamedTuple):
    """The object of an event. ``version`` is its apiVersion. A tuple, because it is part of the key of events."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str = "v1"


class Recorder(Protocol):
    """Records events. Never blocks and never fails: events are aggregated, rate-limited, and dropped under load."""

    def event(self, pod: PodKey, *, warning: bool, reason: str, message: str) -> None:
        """Record an Event on a pod."""
        ...

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """Record an Event on a node, for example about untrusted topology data."""
        ...

    def object_event(self, about: ObjectReference, *, warning: bool, reason: str, message: str) -> None:
        """Record an Event on an object of another kind."""
        ...


class RebindWriter(Protocol):
    """Writes a rebind in small conditional steps, and its result in the RebindResource."""

    async def read_rebind(self, rebind: RebindRequest) -> RebindRequest:
        """Return the current RebindResource. Raises ``Gone`` also when the uid differs."""
        ...

    async def answer(self, rebind: RebindRequest, answer: RebindAnswer) -> None:
        """Write the status. Idempotent. Raises every ``ClusterError``; ``Gone`` also when the uid differs."""
        ...

    async def create_rebind(self, node: str, why: str, *, dry_run: bool) -> None:
        """Create a RebindResource for a node with a generated name and the reason ``why``.

        Raises every ``ClusterError``.
        """
        ...

    async def delete_rebind(self, rebind: RebindRequest) -> None:
        """Delete the RebindResource if its uid is unchanged.

        Raises every ``ClusterError``, for example ``Conflict`` and ``Gone``.
        """
        ...

    async def read_pod(self, pod: PodKey) -> PodRevision:
        """Return the current pod and its resource-status. Raises ``Gone`` also when the uid differs."""
        ...

    async def patch_cpus(self, revision: PodRevision, cpus: CpuSet, numa: NumaAmounts | None = None) -> None:
        """Assign these CPUs to the pod if it is unchanged since it was read. Nothing else changes.

        Raises ``Conflict`` when the pod has changed, and every other ``ClusterError``.
        """
        ...


class VolumeWriter(Protocol):
    """Binds claims to volumes. Every call is idempotent.

    Raises ``Conflict`` when the object belongs to another claim or has changed, ``Gone`` when it does not exist or was
    re-created, and every other ``ClusterError``.
    """

    async def bind_volume(self, volume: str, claim: PersistentVolumeClaim) -> None:
        """Assign an existing volume to the claim."""
        ...

    async def release_volume(self, volume: str, claim: PersistentVolumeClaim) -> None:
        """Revert ``bind_volume`` unless the claim is bound."""
        ...

    async def select_node(self, claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
        """Request a volume for the claim that is accessible from this node. Returns the updated claim."""
        ...

    async def clear_selected_node(self, claim: PersistentVolumeClaim, node: str) -> None:
        """Revert ``select_node`` unless the claim is bound or another node is selected."""
        ...


class PodGroupWriter(Protocol):
    """Writes the status of PodGroups."""

    async def write_status(self, group: PodGroup, status: GroupStatus) -> None:
        """Apply the status. Idempotent. Raises every ``ClusterError``; ``Gone`` also when the uid differs."""
        ...


class Lease(Protocol):
    """The permission of this process to act. Checked before every write."""

    def fresh(self) -> bool:
        """Report whether this process is the leader with time left on its lease by the monotonic clock."""
        ...


class Clock(Protocol):
    """Monotonic seconds, injected so that tests do not sleep."""

    def __call__(self) -> float: ...


class AnnotationWriter(Protocol):
    """Converts a placement to the annotations that the node agent reads.

    Implemented in ``wire`` and provided by the composition root.
    """

    def __call__(self, pod: Pod, placement: Placement) -> Mapping[str, str]: ...


def _sleep(seconds: float) -> Awaitable[None]:
    from asyncio import sleep  # noqa: PLC0415  (loaded by everything that runs a scheduler, and by no other command)

    return sleep(seconds)


class Dependencies(ValueObject):
    """The ports of an engine.

    ``random`` returns numbers in [0, 1) and only randomizes pauses, never a decision. ``volumes`` is ``None`` if
    nothing is bound, as in a dry run.
    """

    binder: Binder
    recorder: Recorder
    lease: Lease
    annotate: AnnotationWriter
    clock: Clock = monotonic
    sleep: Callable[[float], Awaitable[None]] = _sleep
    random: Callable[[], float] = SystemRandom().random
    volumes: VolumeWriter | None = None
    pod_groups: PodGroupWriter | None = None  # None if nothing is bound or pod groups are disabled
    claim_writer: ClaimWriter | None = None  # None if resource claims are disabled
