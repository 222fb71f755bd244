"""
What the engine needs of the outside world, as protocols, and how the outside world may fail.

    ClusterError
    ├── Conflict        the object changed or is bound already: look at it again
    ├── Gone            there is no such object (any more): forget it
    ├── Unavailable     nothing was done (429, 503, no connection): back off, ``retry_after`` seconds when the server said so
    ├── UnknownOutcome  a write was sent and may have been done (no answer, 500, 502, 504): keep the hold, read the object back, settle
    ├── NotLeader       the lease ends before the write would: nothing was sent, another replica may be deciding
    ├── Unauthenticated the credentials are not accepted: back off until they are renewed
    ├── Forbidden       an RBAC rule is missing: permanent until an operator grants it (``rule`` says which)
    └── Invalid         the server refuses the request as such: a bug or hostile data, never retried unchanged

What the engine is given by the composition root: the ports it writes through, its clock and its dice.
"""

from asyncio import sleep
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from random import SystemRandom
from time import monotonic
from typing import Final, NamedTuple, Protocol, TypeVar

from koord_numa.core.claims.allocation import Allocation
from koord_numa.core.claims.claim import DeviceRequest
from koord_numa.core.claims.extended_resources import RequestMapping
from koord_numa.core.claims.node_allocatable import ClaimAmounts
from koord_numa.core.claims.resource_claim import ResourceClaim
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.gangs.model import GroupStatus, PodGroup
from koord_numa.core.objects.rebind_request import PodRevision, RebindAnswer, RebindRequest
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.volumes import PersistentVolumeClaim
from koord_numa.core.rebind.pinned_pods import NumaAmounts

StillAllowed = Callable[[], Awaitable[bool]]
"""Whether what a write rests on still holds: this process leads, and the pod has no node."""


class ClaimWriter(Protocol):
    """
    Allocates and reserves ResourceClaims. Every call may be repeated, and raises ``Conflict`` when the claim has changed in a way that
    makes the decision void, ``Gone`` when it does not exist or was re-created, and every other ``ClusterError``.
    """

    async def reserve(self, claim: ResourceClaim, pod: PodKey, allocation: Allocation | None) -> ResourceClaim:
        """
        Write the allocation, unless it is there already, and reserve the claim for the pod. Returns the claim as written.

        It is written also when both are there: an earlier ``release`` or ``deallocate`` that is late then has no effect.
        """
        ...

    async def release(self, claim: ResourceClaim, pod: PodKey, allowed: StillAllowed) -> None:
        """Take the pod's reservation back; the allocation stays. The version is written that was read before ``allowed`` was asked."""
        ...

    async def deallocate(self, claim: ResourceClaim, pod: str, allowed: StillAllowed) -> ResourceClaim:
        """Take the allocation back, which no pod but this one (by uid) may use. Returns the claim as written; otherwise as ``release``."""
        ...

    async def create(self, pod: PodKey, requests: Sequence[DeviceRequest]) -> ResourceClaim:
        """
        Create the claim for a pod's extended resources, and return it; one that this pod has already is returned as it is.

        Raises ``Conflict`` when that one asks for something else or is being deleted.
        """
        ...

    async def delete(self, claim: ResourceClaim, allowed: StillAllowed) -> None:
        """Delete such a claim with its devices, unless ``allowed`` says no; one that is gone is no error. Otherwise as ``release``."""
        ...

    async def map_requests(self, pod: PodKey, claim: str, mappings: Sequence[RequestMapping]) -> None:
        """
        Write into the pod's status which claim (by name) has devices for its extended resources, and for which containers; without a
        name remove that.

        Raises ``Invalid`` where the API server does not keep it.
        """
        ...

    async def write_amounts(self, pod: PodKey, amounts: Sequence[tuple[str, ClaimAmounts]]) -> None:
        """Write into the pod's status what each claim, by name, takes from the node; nothing clears it."""
        ...


T_contra = TypeVar("T_contra", contravariant=True)

DELETED: Final = "DELETED"
"""The event type of an object that is gone; every other type, ``None`` among them, says that it exists as shown."""


class EventHandler(Protocol[T_contra]):
    """
    Consumer of one kind of object, as client-go's ``ResourceEventHandler``; fed by an informer, or by Kopf's events plus resync.

    Level-based: events may come late, merged, repeated or out of order between kinds. All three methods are synchronous and cheap.
    """

    def replace(self, objects: Iterable[T_contra]) -> None:
        """A complete list: an object that it does not show is gone."""
        ...

    def observe(self, event: str | None, obj: T_contra) -> None:
        """One object as it is now; with ``DELETED``, as it was last. ``None`` marks a part of a list."""
        ...

    def synced(self) -> None:
        """Called once, after the first complete list."""
        ...


class ClusterError(Exception):
    """A request to the cluster did not do what it should."""


class Conflict(ClusterError):
    """The object is not in the state that the request assumed (409, failed precondition)."""


class Gone(ClusterError):
    """The object does not exist (404)."""


class Unavailable(ClusterError):
    """
    Nothing was done and may be asked for again: 429, 503, a connection refused before the request was sent; for reads also every
    other 5xx and a lost answer.
    """

    def __init__(self, message: str, retry_after: float | None = None) -> None:
        super().__init__(message)
        self.retry_after = retry_after


class UnknownOutcome(ClusterError):
    """
    A write may or may not have been carried out: it timed out, the connection broke after it was sent, or the answer was 500, 502 or
    504, with which a proxy or etcd may have given up on a write that came through.
    """


class Forbidden(ClusterError):
    """The server refuses for lack of a right (403). ``rule`` names it as a person would ask for it: ``create pods/binding``."""

    def __init__(self, message: str, rule: str) -> None:
        super().__init__(message)
        self.rule = rule

    def __str__(self) -> str:
        """The message, and what to grant."""
        return f"{super().__str__()}; missing rule: {self.rule}"


class Unauthenticated(ClusterError):
    """The server does not know who asks (401): the credentials are wrong or have expired, and no RBAC rule helps."""


class NotLeader(ClusterError):
    """The lease is not ours any more, or not for long enough for this write: another replica may be deciding. Nothing was sent."""


class Invalid(ClusterError):
    """The server does not accept the request as such (400, 422)."""


class Binder(Protocol):
    """Makes decisions true. Every call is keyed by uid: a re-created pod of the same name is never touched."""

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        """
        Bind a pod and merge these annotations into it, in one call.

        Raises ``Conflict`` (bound already, terminating, gated, or another uid), ``Gone``, ``Unavailable``, ``UnknownOutcome``,
        ``Forbidden``, ``Invalid``.
        """
        ...

    async def read_pod(self, pod: PodKey) -> Pod:
        """The pod as it is now. Raises ``Gone`` also when the name belongs to another uid."""
        ...

    async def set_unschedulable(self, pod: PodKey, message: str) -> None:
        """Set the condition PodScheduled=False with reason Unschedulable."""
        ...

    async def nominate(self, pod: PodKey, node: str, why: str = "") -> Pod:
        """Say in the status which node is being freed (empty: none), with the condition if ``why``; returns the pod as it is then."""
        ...

    async def evict(self, pod: PodKey, message: str) -> None:
        """Evict a preemption victim, respecting disruption budgets. Raises ``Unavailable`` when a budget forbids it now."""
        ...

    async def delete(self, pod: PodKey) -> None:
        """Delete a preemption victim whatever its disruption budgets say. Raises ``Gone`` for a pod of another uid."""
        ...


class ObjectReference(NamedTuple):
    """The object that an event is about; ``version`` is its API version with the group. A tuple, as an event's key is."""

    kind: str
    namespace: str
    name: str
    uid: str
    version: str = "v1"


class Recorder(Protocol):
    """Tells people. Never blocks and never fails: aggregated, rate-limited, dropped under pressure."""

    def event(self, pod: PodKey, *, warning: bool, reason: str, message: str) -> None:
        """An Event on a pod."""
        ...

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """An Event on a node, such as topology data that cannot be trusted."""
        ...

    def object_event(self, about: ObjectReference, *, warning: bool, reason: str, message: str) -> None:
        """An Event on an object of any other kind."""
        ...


class RebindRecorder(Recorder, Protocol):
    """A recorder that knows RebindResources too."""

    def rebind_event(self, rebind: RebindRequest, *, warning: bool, reason: str, message: str) -> None:
        """An Event on a RebindResource."""
        ...


class RebindWriter(Protocol):
    """Carries a rebind out, one small conditional step at a time, and says in the RebindResource how it went."""

    async def read_rebind(self, rebind: RebindRequest) -> RebindRequest:
        """The RebindResource as it is now. Raises ``Gone`` also when the name belongs to another uid."""
        ...

    async def answer(self, rebind: RebindRequest, answer: RebindAnswer) -> None:
        """Write the status. Saying the same twice does no harm. Raises every ``ClusterError``; ``Gone`` as above."""
        ...

    async def create_rebind(self, node: str, why: str, *, dry_run: bool) -> None:
        """Create a RebindResource for a node; the server makes its name. ``why`` is kept with it. Raises every ``ClusterError``."""
        ...

    async def delete_rebind(self, rebind: RebindRequest) -> None:
        """Delete the RebindResource, if it is still this one. Raises ``Conflict``, ``Gone`` and every other ``ClusterError``."""
        ...

    async def read_pod(self, pod: PodKey) -> PodRevision:
        """The pod as it is now and its resource-status. Raises ``Gone`` also when the name belongs to another uid."""
        ...

    async def patch_cpus(self, revision: PodRevision, cpus: CpuSet, numa: NumaAmounts | None = None) -> None:
        """
        Give the pod these CPUs, if it is still exactly as it was read; nothing else about it changes.

        Raises ``Conflict`` when it is not, and every other ``ClusterError``.
        """
        ...


class VolumeWriter(Protocol):
    """
    Gives claims their volumes. Every call may be repeated, and raises ``Conflict`` when the object is another's or has changed,
    ``Gone`` when it does not exist or was re-created, and every other ``ClusterError``.
    """

    async def bind_volume(self, volume: str, claim: PersistentVolumeClaim) -> None:
        """Give an existing volume to the claim."""
        ...

    async def release_volume(self, volume: str, claim: PersistentVolumeClaim) -> None:
        """Take that back, unless the claim is bound by now."""
        ...

    async def select_node(self, claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
        """Have a volume made for the claim that this node reaches. Returns the claim as it then is."""
        ...

    async def clear_selected_node(self, claim: PersistentVolumeClaim, node: str) -> None:
        """Take that back, unless the claim is bound by now or was given to another node."""
        ...


class PodGroupWriter(Protocol):
    """Writes the status of PodGroups."""

    async def write_status(self, group: PodGroup, status: GroupStatus) -> None:
        """Apply the status. Saying the same twice does no harm. Raises ``Gone``, also for another uid, and every ``ClusterError``."""
        ...


class Lease(Protocol):
    """May this process act? Checked before every write."""

    def fresh(self) -> bool:
        """Is this process the leader, with time left on its lease by the monotonic clock?"""
        ...


class Clock(Protocol):
    """Monotonic seconds; injected so that tests do not sleep."""

    def __call__(self) -> float: ...


class AnnotationWriter(Protocol):
    """Turns a placement into the annotations that the node agent reads (``wire``, handed in by the composition root)."""

    def __call__(self, pod: Pod, placement: Placement) -> Mapping[str, str]: ...


@dataclass(frozen=True, slots=True)
class Dependencies:
    """
    The ports of one engine. ``random`` gives numbers in [0, 1) and only spreads waiting times, never a decision.

    ``volumes`` is ``None`` where nothing is ever bound, as in a dry run.
    """

    binder: Binder
    recorder: Recorder
    lease: Lease
    annotate: AnnotationWriter
    clock: Clock = monotonic
    sleep: Callable[[float], Awaitable[None]] = sleep
    random: Callable[[], float] = SystemRandom().random
    volumes: VolumeWriter | None = None
    pod_groups: PodGroupWriter | None = None  # None where nothing is bound, or groups are switched off
    claim_writer: ClaimWriter | None = None  # None where resource claims are switched off
