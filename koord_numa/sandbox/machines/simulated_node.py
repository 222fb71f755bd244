"""
Simulated nodes: their agents and kubelets, which process the pods bound to them.

Like real agents the node is level-based: an event carries the current pod, and a repeated event changes nothing. Tests
can make the node delay events, reject the next pod, or crash and restart.
"""

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from hashlib import sha256
from typing import Any, Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet import ContainerGrant, KubeletNode
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.sandbox.apiserver import ApiError, DeleteOptions, DirectStore, Subscription
from koord_numa.sandbox.machines.agents import (
    WRONG_PLACEMENT,
    AdmittedPod,
    AgentAllocation,
    Claim,
    KoordinatorAgent,
    KubeletAgent,
    NodeAgent,
    NumaCapacity,
    RefusedPod,
    RejectedPod,
    capacity_of,
)
from koord_numa.sandbox.machines.description import KoordletDevices, NodeDescription, Style
from koord_numa.sandbox.machines.kubelet_files import KubeletMemory
from koord_numa.sandbox.machines.topologies import Json, node_object, node_status
from koord_numa.wire import WireError, parse_pod
from koord_numa.wire.kubelet_state import kubelet_state_text
from koord_numa.wire.names import KUBELET_STATE, TOPOLOGY_GROUP, TOPOLOGY_PLURAL

# The log of all allocations on simulated nodes, which detects double holds of CPUs, devices or memory.
#
# The nodes append to the log without checks. It is evaluated afterwards, independently of their admission checks. A
# resource with an id must have a single holder. Other amounts are claimed from a set of NUMA nodes. All claims can be
# met if and only if every union of such sets has at least the amount that is claimed from within it (Hall's theorem for
# amounts).

NOTHING = AgentAllocation()


@dataclass(frozen=True, slots=True)
class HistoryEntry:
    """The allocation of a pod on a node from this entry on."""

    node: str
    pod: PodKey
    held: AgentAllocation


@dataclass(frozen=True, slots=True)
class SimultaneousHold:
    """Pods that held the resource ``what`` at the same time. ``moment`` is the number of the log entry that caused it."""

    moment: int
    node: str
    what: str
    pods: tuple[PodKey, ...]

    def __str__(self) -> str:
        return f"entry {self.moment}: {self.what} of {self.node} are held by {' and '.join(map(str, self.pods))}"


@dataclass(slots=True)
class History:
    """The log of a run in chronological order. ``stocks`` is the capacity of the nodes."""

    entries: list[HistoryEntry] = field(default_factory=list)
    stocks: dict[str, NumaCapacity] = field(default_factory=dict)

    def hold(self, node: str, pod: PodKey, held: AgentAllocation) -> None:
        """Record the allocation of a pod. It replaces the previous allocation of the pod on the node."""
        self.entries.append(HistoryEntry(node, pod, held))

    def release(self, node: str, pod: PodKey) -> None:
        """Record that a pod holds nothing."""
        self.entries.append(HistoryEntry(node, pod, NOTHING))

    def double_holds(self) -> list[SimultaneousHold]:
        """Return all double holds in the order of their entries."""
        return list(self._replay())

    def holders(self) -> dict[str, dict[PodKey, CpuSet]]:
        """Return the CPUs that pods hold at the end, by node."""
        return {
            node: cpus
            for node, pods in self.allocations().items()
            if (cpus := {pod: held.cpus for pod, held in pods.items() if held.cpus})
        }

    def allocations(self) -> dict[str, dict[PodKey, AgentAllocation]]:
        """Return the allocations of pods at the end, by node."""
        found: dict[str, dict[PodKey, AgentAllocation]] = {}
        for entry in self.entries:
            _enter(found.setdefault(entry.node, {}), entry)
        return {node: pods for node, pods in found.items() if pods}

    def _replay(self) -> Iterator[SimultaneousHold]:
        found: dict[str, dict[PodKey, AgentAllocation]] = {}
        for moment, entry in enumerate(self.entries):
            pods = found.setdefault(entry.node, {})
            # The entry replaces the pod's own earlier allocation, which therefore is no conflict.
            pods.pop(entry.pod, None)
            for other, held in pods.items():
                for what in _in_common(held, entry.held):
                    yield SimultaneousHold(moment, entry.node, what, (other, entry.pod))
            _enter(pods, entry)
            stock = self.stocks.get(entry.node, {})
            # Only the resources of this entry: no other resource can become overcommitted by it.
            for resource in sorted({claim.resource for claim in entry.held.claims}):
                for what, holders in _overdrawn(resource, stock.get(resource, {}), pods):
                    yield SimultaneousHold(moment, entry.node, what, holders)


def _enter(pods: dict[PodKey, AgentAllocation], entry: HistoryEntry) -> None:
    # Popped first, so that the pod moves to the end and violations list pods in chronological order.
    pods.pop(entry.pod, None)
    if entry.held != NOTHING:
        pods[entry.pod] = entry.held


def _in_common(one: AgentAllocation, other: AgentAllocation) -> Iterator[str]:
    if one.cpus & other.cpus:
        yield f"CPUs {one.cpus & other.cpus}"
    if one.devices & other.devices:
        yield f"devices {', '.join(sorted(one.devices & other.devices))}"


def _overdrawn(
    resource: str, there: Mapping[int, int], pods: Mapping[PodKey, AgentAllocation]
) -> Iterator[tuple[str, tuple[PodKey, ...]]]:
    """Yield every set of NUMA nodes whose claims exceed its amount, with the claiming pods."""
    claims = [
        (pod, claim) for pod, held in pods.items() for claim in held.claims if claim.resource == resource and claim.mask
    ]
    whole = 0
    # Amounts without a NUMA node (mask 0) count only for the union of all NUMA nodes.
    for mask in (*there, *(claim.mask for _, claim in claims)):
        whole |= mask
    # Unions of claimed sets suffice for Hall's condition: any other set claims no more than the largest union within
    # it.
    for mask in _unions(claim for _, claim in claims):
        # subset test: no bit outside the union
        within = [(pod, claim.amount) for pod, claim in claims if not claim.mask & ~mask]
        claimed = sum(amount for _, amount in within)
        has = sum(amount for place, amount in there.items() if (place and not place & ~mask) or mask == whole)
        if claimed > has:
            yield f"{claimed} of {has} {resource} on NUMA nodes {CpuSet(mask)}", tuple(dict(within))


def _unions(claims: Iterator[Claim]) -> list[int]:
    unions: set[int] = set()
    for mask in {claim.mask for claim in claims}:
        # Exponential in the worst case, but machines have few NUMA nodes.
        unions |= {mask, *(mask | other for other in unions)}
    return sorted(unions)


# conditions that the kubelet manages (pkg/kubelet/status/generate.go)
_OWN_CONDITIONS: Final = ("PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady")


def running(pod: Mapping[str, Any], host: str, address: str, now: str) -> Json:
    """Return the status of a pod whose containers run and are ready, after its init containers have completed."""
    spec = pod.get("spec") or {}
    return {
        "phase": "Running",
        "conditions": [*_others(pod), *_conditions("True", now)],
        "hostIP": host,
        "hostIPs": [{"ip": host}],
        "podIP": address,
        "podIPs": [{"ip": address}],
        "startTime": now,
        "initContainerStatuses": [
            _container(pod, item, now, runs=item.get("restartPolicy") == "Always")
            # Sidecars (init containers with restartPolicy Always) keep running; other init containers have completed.
            for item in spec.get("initContainers") or ()
        ],
        "containerStatuses": [_container(pod, item, now, runs=True) for item in spec.get("containers") or ()],
    }


def refused(reason: str, message: str, now: str) -> Json:
    """Return the status of a pod that the kubelet did not admit."""
    text = f"Pod was rejected: {message}"
    # No container statuses: the kubelet rejects before it creates containers (kubelet.go rejectPod).
    return {"phase": "Failed", "reason": reason, "message": text, "startTime": now}


def ended(pod: Mapping[str, Any], phase: str, now: str) -> Json:
    """Return the status of a pod whose containers have terminated, with phase ``Succeeded`` or ``Failed``."""
    spec = pod.get("spec") or {}
    return {
        "phase": phase,
        "conditions": [*_others(pod), *_conditions("False", now)],
        "containerStatuses": [
            _container(pod, item, now, runs=False, code=0 if phase == "Succeeded" else 1)
            for item in spec.get("containers") or ()
        ],
    }


def _others(pod: Mapping[str, Any]) -> Iterable[Any]:
    """Yield the conditions that the kubelet does not manage, such as PodScheduled."""
    for condition in (pod.get("status") or {}).get("conditions") or ():
        if condition.get("type") not in _OWN_CONDITIONS:
            yield condition


def _conditions(ready: str, now: str) -> Iterable[Json]:
    for kind in _OWN_CONDITIONS:
        # The pod sandbox outlives its containers, and an initialized pod stays initialized.
        status = ready if kind in ("Ready", "ContainersReady") else "True"
        yield {"type": kind, "status": status, "lastTransitionTime": now}


def container_id(pod_uid: str, name: str) -> str:
    """Return the runtime's id of a container: 64 hexadecimal digits, as in containerd and CRI-O."""
    # Derived from uid and name, so that runs are reproducible.
    return sha256(f"{pod_uid}/{name}".encode()).hexdigest()


def _container(pod: Mapping[str, Any], container: Mapping[str, Any], now: str, *, runs: bool, code: int = 0) -> Json:
    image = container.get("image") or "image"
    name = container.get("name") or ""
    full_id = f"containerd://{container_id(str(pod['metadata'].get('uid', '')), name)}"
    ended_state = {
        "terminated": {
            "exitCode": code,
            "reason": "Error" if code else "Completed",
            "startedAt": now,
            "finishedAt": now,
            "containerID": full_id,
        }
    }
    return {
        "name": name,
        "image": image,
        "imageID": image,
        "containerID": full_id,
        "ready": runs,
        "started": runs,
        "restartCount": 0,
        "state": {"running": {"startedAt": now}} if runs else ended_state,
    }


NOT_FOUND = 404
TOPOLOGIES = f"{TOPOLOGY_PLURAL}.{TOPOLOGY_GROUP}"

Clock = Callable[[], str]
"""Returns the current time in RFC 3339."""


class SimulatedNode:
    """A node and its agent.

    ``violations`` are placements of the scheduler that violate a rule. ``refusals`` are all rejected pods.
    """

    def __init__(
        self, description: NodeDescription, number: int, store: DirectStore, history: History, clock: Clock
    ) -> None:
        self.description = description
        self.violations: list[RejectedPod] = []
        self.refusals: list[RejectedPod] = []
        self.dirty = True  # the published topology is outdated
        self._store = store
        self._history = history
        history.stocks[description.name] = capacity_of(description)
        self._clock = clock
        kubelet = description.style is Style.KUBELET
        self._agent: NodeAgent = KubeletAgent(description) if kubelet else KoordinatorAgent(description)
        self.devices = KoordletDevices(description.name, description.devices_by_id)
        self._pods: dict[str, Pod] = {}  # admitted pods by uid
        # Nodes have addresses in the lower half of 10.0.0.0/8, pods in the upper half. Pod addresses repeat between
        # nodes, as nothing is routed.
        self._host = f"10.{number // 65536 % 256}.{number // 256 % 256}.{number % 256}"
        self._uid = ""
        self._started = 0
        # Uids of rejected and terminated pods, which outdated events must not start again.
        self._ended: set[str] = set()
        self._lagging = False
        self._down = False
        self.listeners: list[
            Callable[[], None]
        ] = []  # called when pods have started, ended or changed their assignment
        self._delayed: deque[tuple[str, Json]] = deque()
        self._refuse_next: deque[RefusedPod] = deque()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.description.name

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The running pods by uid."""
        return self._pods

    @property
    def kubelet(self) -> KubeletNode | None:
        """The static facts of the kubelet if it selects CPUs, else ``None``."""
        return self._agent.kubelet if isinstance(self._agent, KubeletAgent) else None

    @property
    def grants(self) -> Mapping[str, tuple[ContainerGrant, ...]]:
        """The kubelet's grants to containers by pod uid. Empty if the scheduler selects CPUs."""
        return self._agent.grants() if isinstance(self._agent, KubeletAgent) else {}

    @property
    def kubelet_memory(self) -> KubeletMemory | None:
        """The content of the kubelet's checkpoint files if the kubelet selects CPUs, else ``None``."""
        return self._agent.memory() if isinstance(self._agent, KubeletAgent) else None

    def register(self) -> None:
        """Create or update the Node and its topology."""
        node = node_object(self.description, self._clock())
        # Without the status, which is written only through its subresource.
        written = self._store.apply({key: value for key, value in node.items() if key != "status"})
        status = {"status": node_status(self.description, self._clock())}
        self._store.patch("nodes", self.name, status, subresource="status")
        self._uid = str(written["metadata"]["uid"])
        self.publish_devices()
        self.publish()

    def publish_devices(self) -> None:
        """Update the Device object of a node with devices by id."""
        if self.devices:
            self._store.apply(self.devices.object(self._uid))

    def publish(self) -> None:
        """Update the published topology."""
        # A node agent publishes for this node; two writers would overwrite each other.
        if self.description.agent:
            self.dirty = False
            return
        topology = self._agent.topology()
        topology["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self._uid, "controller": True}
        ]
        if self.description.kubelet_state and isinstance(self._agent, KubeletAgent):
            now = datetime.fromisoformat(self._clock()).timestamp()
            topology["metadata"]["annotations"] = {KUBELET_STATE: kubelet_state_text(self._agent.checkpoint(now))}
        self._store.apply(topology)
        self.dirty = False

    def observe(self, event: str, obj: Json) -> None:
        """Process an event of a pod that is bound to this node."""
        # A crashed kubelet loses events. ``restart`` lists the pods instead.
        if self._down:
            return
        if self._lagging:
            self._delayed.append((event, obj))
        else:
            self._act(event, obj)

    def lag(self) -> None:
        """Delay all events until ``catch_up``."""
        self._lagging = True

    def catch_up(self) -> None:
        """Process the delayed events and stop delaying."""
        self._lagging = False
        while self._delayed:
            self._act(*self._delayed.popleft())

    def refuse_next(self, reason: str, message: str = "as told") -> None:
        """Reject the next pod that would be admitted."""
        self._refuse_next.append(RefusedPod(reason, message))

    def crash(self) -> None:
        """Ignore events until ``restart``. Containers keep running."""
        self._down = True
        self._delayed.clear()

    def restart(self) -> None:
        """Start again: running pods stay, pods deleted in the meantime are released, new pods are admitted."""
        self._down = self._lagging = False
        found = {obj["metadata"]["uid"]: obj for obj in self._store.list("pods", fields=f"spec.nodeName={self.name}")}
        # Before the admissions: the resources of deleted pods must be free for new pods.
        for uid in [uid for uid in self._pods if uid not in found]:
            self._release(uid)
        for obj in found.values():
            self._act("MODIFIED", obj)

    def finish(self, pod: PodKey, phase: str = "Succeeded") -> None:
        """Terminate the containers of a pod."""
        obj = self._store.get("pods", pod.name, pod.namespace)
        # Recorded before the status is written, because the write triggers an event.
        self._release(pod.uid)
        self._ended.add(pod.uid)
        self._write_status(pod, ended(obj, phase, self._clock()))

    def _act(self, event: str, obj: Json) -> None:
        try:
            pod = parse_pod(obj)
        except WireError:
            return  # a pod without name and uid cannot run
        if event == "DELETED" or pod.finished:
            self._release(pod.key.uid)
            # From here on the object's own status shows that it has terminated.
            self._ended.discard(pod.key.uid)
        elif pod.key.uid in self._ended:
            return
        elif pod.deleting:
            self._release(pod.key.uid)
            self._remove(pod.key)
        elif pod.key.uid not in self._pods:
            self._start(pod, obj)
        elif (pod.assignment, pod.devices) != (self._pods[pod.key.uid].assignment, self._pods[pod.key.uid].devices):
            self._update_assignment(pod)

    def _start(self, pod: Pod, obj: Json) -> None:
        # A rejection on request precedes the agent, so that the agent does not account for the pod.
        answer = self._refuse_next.popleft() if self._refuse_next else self._admit(pod)
        if isinstance(answer, RefusedPod):
            self._reject(pod, answer)
            return
        self._pods[pod.key.uid] = pod
        self._history.hold(self.name, pod.key, answer.held)
        self._changed()
        # After a restart the containers still run and the status is unchanged.
        if pod.phase != "Running":
            self._started += 1
            address = f"10.{128 + self._started // 65536 % 128}.{self._started // 256 % 256}.{self._started % 256}"
            self._write_status(pod.key, running(obj, self._host, address, self._clock()))

    def _admit(self, pod: Pod) -> AdmittedPod | RefusedPod:
        if wrong := self.devices.admit(pod):
            return RefusedPod(WRONG_PLACEMENT, wrong)
        answer = self._agent.admit(pod)
        if isinstance(answer, RefusedPod):
            self.devices.remove(pod.key.uid)
        return answer

    def _update_assignment(self, pod: Pod) -> None:
        """Apply the changed assignment of a running pod. A violation is recorded and terminates the pod."""
        answer = self._admit(pod)
        if isinstance(answer, RefusedPod):
            self._release(pod.key.uid)
            self._reject(pod, answer)
            return
        self._pods[pod.key.uid] = pod
        self._history.hold(self.name, pod.key, answer.held)
        self._changed()

    def _release(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._agent.remove(uid)
            self.devices.remove(uid)
            self._history.release(self.name, pod.key)
            self._changed()

    def _changed(self) -> None:
        self.dirty = True
        for listener in self.listeners:
            listener()

    def _reject(self, pod: Pod, answer: RefusedPod) -> None:
        complaint = RejectedPod(self.name, pod.key, answer.reason, answer.message)
        self.refusals.append(complaint)
        if answer.reason == WRONG_PLACEMENT:
            self.violations.append(complaint)
        self._ended.add(pod.key.uid)
        self._write_status(pod.key, refused(answer.reason, answer.message, self._clock()))

    def _write_status(self, pod: PodKey, status: Json) -> None:
        """Write the status if the uid still matches. A pod of the same name may have been created since."""
        current = self._store.find("pods", pod.name, pod.namespace)
        if current is not None and current["metadata"]["uid"] == pod.uid:
            self._store.patch("pods", pod.name, {"status": status}, pod.namespace, subresource="status")

    def _remove(self, pod: PodKey) -> None:
        """Delete the object of a deleted pod after its containers have stopped."""
        try:
            self._store.delete("pods", pod.name, pod.namespace, DeleteOptions(grace=0, uid=pod.uid))
        except ApiError as problem:
            if problem.code not in (NOT_FOUND, 409):
                raise


def time_of_day() -> str:
    """Return the current time in RFC 3339 with whole seconds in UTC."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Fleet:
    """Simulated nodes by name.

    ``start`` registers the nodes and admits pods immediately. ``publish`` updates the topologies, because real agents
    and exporters report with a delay. ``keep_publishing`` calls it periodically.
    """

    def __init__(self, store: DirectStore, nodes: Iterable[NodeDescription], clock: Clock = time_of_day) -> None:
        self.history = History()
        self._store = store
        self._clock = clock
        self._nodes: dict[str, SimulatedNode] = {}
        self._subscription: Subscription | None = None
        for description in nodes:
            self._add(description)

    @property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        """All nodes by name."""
        return self._nodes

    @property
    def violations(self) -> list[RejectedPod]:
        """Placements of the scheduler that violate a rule, on all nodes."""
        return [complaint for node in self._nodes.values() for complaint in node.violations]

    @property
    def refusals(self) -> list[RejectedPod]:
        """Pods that a node rejected for any reason, on all nodes."""
        return [complaint for node in self._nodes.values() for complaint in node.refusals]

    def double_holds(self) -> list[SimultaneousHold]:
        """Return every double hold of a CPU, a device or memory in the history."""
        return self.history.double_holds()

    def start(self) -> None:
        """Register all nodes and admit pods. Pods that are already bound are admitted first."""
        for node in self._nodes.values():
            node.register()
        self._subscription = self._store.subscribe("pods", self._dispatch)

    def stop(self) -> None:
        """Ignore pods. Nodes and topologies remain."""
        if self._subscription is not None:
            self._subscription.cancel()
            self._subscription = None

    def add(self, description: NodeDescription) -> SimulatedNode:
        """Add and register a node."""
        node = self._add(description)
        node.register()
        # As after a restart: pods may already be bound to the name.
        node.restart()
        return node

    def publish(self) -> int:
        """Update all topologies and return the number of changed topologies."""
        changed = [node for node in self._nodes.values() if node.dirty]
        for node in changed:
            node.publish()
        return len(changed)

    async def keep_publishing(self, interval: float) -> None:
        """Publish every ``interval`` seconds until cancelled."""
        while True:
            await asyncio.sleep(interval)
            self.publish()

    def _add(self, description: NodeDescription) -> SimulatedNode:
        if description.name in self._nodes:
            raise ValueError(f"there are two nodes named {description.name}")
        node = SimulatedNode(description, len(self._nodes), self._store, self.history, self._clock)
        self._nodes[description.name] = node
        return node

    def _dispatch(self, event: str, pod: Json) -> None:
        # Unbound pods and pods on other nodes are ignored.
        node = self._nodes.get((pod.get("spec") or {}).get("nodeName") or "")
        if node is not None:
            node.observe(event, pod)
