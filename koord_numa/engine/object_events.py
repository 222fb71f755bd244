"""Events on pods, nodes and other objects, and the PodScheduled condition of pods."""

import asyncio
from collections import Counter, OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from logging import getLogger
from operator import attrgetter
from typing import Final, TypeVar
from weakref import WeakKeyDictionary

from koord_numa.core.explain import amounts_text, bare_amount, explain
from koord_numa.core.kubelet import unknown_words
from koord_numa.core.objects.devices import devices_text
from koord_numa.core.objects.node import Node, NodeResourceTopology
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.verdicts import Placement, Unschedulable
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU
from koord_numa.core.value_objects import MutableObject, ValueObject, value_field
from koord_numa.engine.cache.node_info import NodeInfo, unread_of
from koord_numa.engine.containment import Subject
from koord_numa.engine.queue import PendingPod, PendingPods, RequestClass
from koord_numa.ports import ClusterError, Dependencies, Forbidden, Gone, Invalid, ObjectReference, Recorder

# Events on nodes whose objects cannot be parsed, lack NUMA nodes, name unknown kubelet options, or have misspelled keys.
#
# The leader writes one event per problem. A problem that a standby finds is reported when the standby becomes the leader.

T = TypeVar("T", str, tuple[str, ...])

UNREADABLE: Final = "TopologyUnreadable"
NOT_READ: Final = "KeyNotRead"


class UnreadableTopologies:
    """Problems of node objects. ``problems`` and ``unread`` are current, by node."""

    def __init__(self, dependencies: Dependencies) -> None:
        self.problems: dict[str, str] = {}
        self.unread: dict[str, tuple[str, ...]] = {}
        self._dependencies = dependencies
        self._unsaid: set[str] = set()
        self._unsaid_keys: set[str] = set()
        self._judged: dict[
            str, tuple[Node | None, NodeResourceTopology | None]
        ] = {}  # by node, the objects that were checked last

    def node_changed(self, info: NodeInfo) -> None:
        """Check the node's objects if they have changed."""
        # Called for every added or removed pod, while topologies are replaced once a minute.
        node, topology = self._judged.get(info.name, (None, None))
        if info.current is topology and info.node is node:
            return
        if info.node is None:
            self._judged.pop(info.name, None)
        else:
            self._judged[info.name] = info.node, info.current
        problem = "" if info.current is None else problem_of(info.current)
        _update(self.problems, self._unsaid, info.name, problem)
        _update(self.unread, self._unsaid_keys, info.name, unread_of(info))

    def tick(self) -> None:
        """Write the events that are due, if this process leads."""
        if not (self._unsaid or self._unsaid_keys) or not self._dependencies.lease.fresh():
            return
        for name in sorted(self._unsaid):
            self._report(
                name,
                reason=UNREADABLE,
                message=f"pods that depend on the node's topology avoid it: {self.problems[name]}",
            )
        for name in sorted(self._unsaid_keys):
            self._report(name, reason=NOT_READ, message="; ".join(self.unread[name]))
        self._unsaid.clear()
        self._unsaid_keys.clear()

    def _report(self, node: str, *, reason: str, message: str) -> None:
        self._dependencies.recorder.node_event(node, warning=True, reason=reason, message=message)


def _update(known: dict[str, T], unsaid: set[str], node: str, found: T) -> None:
    """Store the current problem of a node; a change is reported."""
    if known.get(node) == (found or None):
        return
    if found:
        known[node] = found
        unsaid.add(node)
    else:
        del known[node]
        unsaid.discard(node)


def problem_of(topology: NodeResourceTopology) -> str:
    """Return an invalid key, a missing part, or an unknown kubelet option; empty if there is no problem."""
    if topology.problem or topology.gap:
        return topology.problem or topology.gap
    return unknown_words(topology.kubelet) if topology.owner is CpuOwner.KUBELET else ""


NEWS_SECONDS: Final = 60.0
"""Seconds after which changed numbers of single nodes are reported again."""

_message = attrgetter("message")


class Message(ValueObject):
    """Message of a class, when it was reported, and its counts of reasons."""

    text: str
    counts: Counter[str]
    since: float


class Messages(MutableObject):
    """Last message of every waiting class. Times are monotonic seconds."""

    _last: WeakKeyDictionary[RequestClass, Message] = value_field(default_factory=WeakKeyDictionary)
    _current: WeakKeyDictionary[RequestClass, tuple[Unschedulable, str]] = value_field(
        default_factory=WeakKeyDictionary
    )

    def say(self, request_class: RequestClass, verdict: Unschedulable, now: float) -> tuple[str, bool]:
        """Return the message for a pod of this class, and whether it is new for the other pods."""
        # Counts of messages without details: numbers of single nodes change with every placement.
        counts = Counter(map(_message, verdict.rejections.values()))
        last = self._last.get(request_class)
        if last is not None and last.counts == counts and now - last.since < NEWS_SECONDS:
            return last.text, False
        text = why_everywhere(verdict)
        self._last[request_class] = Message(text, counts, now)
        return text, last is None or last.text != text

    def told(self, request_class: RequestClass, verdict: Unschedulable) -> str:
        """Return the last message of this class, for a remark: a new remark does not update the numbers of single nodes."""
        last = self._last.get(request_class)
        return self.current(request_class, verdict) if last is None else last.text

    def current(self, request_class: RequestClass, verdict: Unschedulable) -> str:
        """Return the message for a pod that was just added to this class: from the last verdict, however old the class's message is."""
        found = self._current.get(request_class)
        # Computed once per verdict: thousands of pods may be added to a class.
        if found is None or found[0] is not verdict:
            found = self._current[request_class] = (verdict, why_everywhere(verdict))
        return found[1]


def why_everywhere(verdict: Unschedulable) -> str:
    """Return the message of kube-scheduler with numbers, or the message for a cluster without nodes."""
    if not verdict.rejections:
        return "0/0 nodes are available: no node is known."
    return explain(verdict.rejections)


def with_remark(why: str, remark: str) -> str:
    """Insert the remark after the first line, before lines about single nodes."""
    if not remark:
        return why
    first, line, rest = why.partition("\n")
    return f"{first} {remark}{line}{rest}"


log = getLogger(__name__)

SCHEDULED: Final = "Scheduled"
FAILED: Final = "FailedScheduling"
RETRY_SECONDS: Final = 2.0
HELD_SECONDS: Final = 5.0
"""Maximum seconds that a condition is held for another request to the pod's status."""
WRITERS: Final = 4
"""Number of concurrent writers: a call that hangs blocks only its own writer."""


class _Later(MutableObject):
    """Conditions that become due after ``seconds``, by UID with the due time, earliest first."""

    seconds: float
    conditions: OrderedDict[str, tuple[float, PodKey, str]] = value_field(default_factory=OrderedDict)
    news: asyncio.Event = value_field(default_factory=asyncio.Event)

    def add(self, pod: PodKey, why: str, now: float) -> None:
        known = self.conditions.get(pod.uid)
        # A new message of a pod keeps the due time: otherwise new messages could defer it forever.
        self.conditions[pod.uid] = (now + self.seconds if known is None else known[0], pod, why)
        self.news.set()

    def pop(self, uid: str) -> tuple[PodKey, str] | None:
        found = self.conditions.pop(uid, None)
        return None if found is None else found[1:]


class PodConditions(MutableObject):
    """
    Conditions to be written, by UID, oldest first. The last message of a pod is in its record.

    A condition is *held* while ``will_be_lent`` returns that the pod's status is about to be written anyway: until ``lent``, ``release``,
    or for ``HELD_SECONDS``.
    """

    dependencies: Dependencies
    will_be_lent: Callable[[PendingPod], bool] = lambda _: False
    _due: OrderedDict[str, tuple[PodKey, str]] = value_field(default_factory=OrderedDict)
    _failed: _Later = value_field(default_factory=lambda: _Later(RETRY_SECONDS))
    _held: _Later = value_field(default_factory=lambda: _Later(HELD_SECONDS))
    _writing: set[str] = value_field(default_factory=set)  # at most one writer per pod
    _lent: set[str] = value_field(
        default_factory=set
    )  # the pods whose condition is written together with another change
    _news: asyncio.Event = value_field(default_factory=asyncio.Event)

    def __len__(self) -> int:
        """Return the number of conditions that are not written yet."""
        return len(self._due) + len(self._failed.conditions) + len(self._held.conditions)

    @property
    def held(self) -> int:
        """Number of held conditions."""
        return len(self._held.conditions)

    def waits(self, pending: PendingPod, why: str) -> None:
        """Report that the pod waits, as an event and a condition, if the message or its remark changed."""
        pending.reason = why
        why = with_remark(why, pending.remark)
        pending.provisional = False
        # Unchanged: every attempt gives the same verdict.
        if pending.message == why:
            return
        pending.message = why
        key = pending.pod.key
        self.warn(key, why)
        # A new message replaces a message that could not be written.
        self._failed.pop(key.uid)
        if self.will_be_lent(pending):
            self._due.pop(key.uid, None)
            self._held.add(key, why, self.dependencies.clock())
            return
        self._held.pop(key.uid)
        self._due[key.uid] = (key, why)
        self._news.set()

    def release(self, uid: str) -> None:
        """Make the held condition of this pod due, because no other request writes it."""
        if (held := self._held.pop(uid)) is not None:
            self._due[uid] = held
            self._news.set()

    def warn(self, pod: PodKey, why: str) -> None:
        """Report a failure as an event only, because it does not mean that the pod is unschedulable."""
        self.dependencies.recorder.event(pod, warning=True, reason=FAILED, message=why)

    def placed(self, pod: Pod, placement: Placement) -> None:
        """Report that the pod is bound, with its node and resources."""
        message = f"Successfully assigned {pod.key} to {placement.node}{describe_placement(placement)}"
        self.dependencies.recorder.event(pod.key, warning=False, reason=SCHEDULED, message=message)

    def forget(self, uid: str) -> None:
        """Drop the conditions of a pod that does not wait any more."""
        self._due.pop(uid, None)
        self._failed.pop(uid)
        self._held.pop(uid)
        self._lent.discard(uid)

    @contextmanager
    def lent(self, uid: str) -> Iterator[str]:
        """
        Yield the due or held message of this pod for a request that writes it together with another change.

        The message is due again if the request raises. Empty if there is none, or another writer writes it.
        """
        due = None if uid in self._writing else self._due.pop(uid, None) or self._held.pop(uid)
        if due is None:
            yield ""
            return
        self._writing.add(uid)
        self._lent.add(uid)
        try:
            yield due[1]
        except BaseException:
            # Not if the pod was forgotten meanwhile. A newer message is due already.
            if uid in self._lent:
                self._due.setdefault(uid, due)
            raise
        finally:
            self._writing.discard(uid)
            self._lent.discard(uid)
            self._news.set()

    async def run(self) -> None:
        """Write conditions until cancelled. Of several messages of a pod only the latest is written."""
        # A task group: an exception in a writer is a bug and ends the process.
        async with asyncio.TaskGroup() as tasks:
            for later in (self._failed, self._held):
                tasks.create_task(self._wait_for(later))
            for _ in range(WRITERS):
                tasks.create_task(self._write_due())

    async def _write_due(self) -> None:
        while True:
            # Oldest first; a new message of a queued pod keeps its position.
            while (uid := self._next()) is not None:
                pod, why = self._due.pop(uid)
                self._writing.add(uid)
                try:
                    await self._write(pod, why)
                finally:
                    self._writing.discard(uid)
            self._news.clear()
            await self._news.wait()

    def _next(self) -> str | None:
        """Return a pod without an active writer. Otherwise a pod with hanging requests could block all writers."""
        return next((uid for uid in self._due if uid not in self._writing), None)

    async def _wait_for(self, later: _Later) -> None:
        while True:
            while later.conditions:
                uid, (until, pod, why) = next(iter(later.conditions.items()))
                wait = until - self.dependencies.clock()
                if wait > 0:
                    await self.dependencies.sleep(wait)
                # Replaced or forgotten meanwhile: not due any more.
                if later.conditions.get(uid) == (until, pod, why):
                    later.pop(uid)
                    # ``setdefault``, because a newer message of the pod may be due already.
                    self._due.setdefault(uid, (pod, why))
                    self._news.set()
            later.news.clear()
            await later.news.wait()

    async def _write(self, pod: PodKey, why: str) -> None:
        try:
            if self.dependencies.lease.fresh():
                await self.dependencies.binder.set_unschedulable(pod, why)
                return
        except (Gone, Invalid):
            return
        except Forbidden as error:
            log.warning("conditions cannot be written: the permission to %s is missing", error.rule)
            return
        except ClusterError as error:
            log.debug("the condition of pod %s cannot be written now: %s", pod, error)
        except Exception:
            log.exception("the condition of pod %s cannot be written", pod)  # contained: affects this pod only
            return
        if pod.uid not in self._due:  # otherwise there is a newer message
            self._failed.add(pod, why, self.dependencies.clock())


def describe_placement(placement: Placement) -> str:
    """Return ``: NUMA 0, CPUs 0-3, gpu 0``, with the note why the pod was not aligned; empty if there are no details."""
    parts = []
    if placement.mask is not None:
        numa = [str(number) for number in range(placement.mask.bit_length()) if placement.mask >> number & 1]
        parts.append(f"NUMA {', '.join(numa)}")
    if placement.cpus:
        parts.append(f"CPUs {placement.cpus}")
    if placement.devices:
        parts.append(devices_text(placement.devices))
    if placement.note:
        parts.append(placement.note)
    return f": {', '.join(parts)}" if parts else ""


QUARANTINED: Final = "Quarantined"

_STORAGE: Final = "storage.k8s.io/v1"
_DEVICES: Final = "resource.k8s.io/v1"

KINDS: Final[Mapping[str, tuple[str, str]]] = {
    "namespace": ("Namespace", "v1"),
    "claim": ("PersistentVolumeClaim", "v1"),
    "volume": ("PersistentVolume", "v1"),
    "storage class": ("StorageClass", _STORAGE),
    "CSINode": ("CSINode", _STORAGE),
    "CSIDriver": ("CSIDriver", _STORAGE),
    "capacity": ("CSIStorageCapacity", _STORAGE),
    "attachment": ("VolumeAttachment", _STORAGE),
    "budget": ("PodDisruptionBudget", "policy/v1"),
    "resource claim": ("ResourceClaim", _DEVICES),
    "resource slice": ("ResourceSlice", _DEVICES),
    "device class": ("DeviceClass", _DEVICES),
    "device taint rule": ("DeviceTaintRule", _DEVICES),
    "Service": ("Service", "v1"),
    "ReplicationController": ("ReplicationController", "v1"),
    "ReplicaSet": ("ReplicaSet", "apps/v1"),
    "StatefulSet": ("StatefulSet", "apps/v1"),
    "rebind": ("RebindResource", "scheduling.koordinator.sh/v1alpha1"),
}
"""Kind and API version of subjects that are neither pods nor nodes."""


def tell_quarantine(
    waiting: PendingPods, conditions: PodConditions, recorder: Recorder, subject: Subject, why: str
) -> None:
    """
    Report a quarantine: in the condition of a waiting pod, otherwise as an event on the object.

    Every replica reports it once, because most objects are read before a replica leads.
    """
    message = f"the {subject.kind} {subject.name} is quarantined until it changes: {why}"
    pending = waiting.get(subject.uid)
    if pending is not None:
        conditions.waits(pending, message)
        return
    if subject.kind == "pod":
        return  # reported by another event (``ContainedParser``, ``Cache.set_broken``)
    known = KINDS.get(subject.kind)
    if known is None:
        recorder.node_event(subject.uid, warning=True, reason=QUARANTINED, message=message)
        return
    namespace, _, name = subject.name.rpartition("/")
    # If the name replaces the UID, the UID is unknown.
    uid = "" if subject.uid == subject.name else subject.uid
    about = ObjectReference(known[0], namespace, name, uid, known[1])
    recorder.object_event(about, warning=True, reason=QUARANTINED, message=message)


RESIZE_KEEPS_CPUS = "ResizeKeepsCPUs"
"""Reason of the event."""


def resize_message(before: Pod | None, pod: Pod) -> str:
    """
    Return the message of the event, empty if no event is needed.

    A resize changes only the counted amounts of a pod. Its CPUs were chosen at placement and stay until the pod is replaced.
    """
    cpus = pod.assignment.cpus if pod.assignment is not None else None
    if before is None or before.node != pod.node or not cpus:
        return ""
    former, now = effective_requests(before.request).get(CPU, 0), effective_requests(pod.request).get(CPU, 0)
    if former == now:
        return ""
    return (
        f"the pod counts {amounts_text({CPU: now})} instead of {bare_amount(CPU, former)} now and keeps its CPUs {cpus}: "
        "other CPUs need a new pod"
    )
