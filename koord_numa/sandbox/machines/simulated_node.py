"""A simulated node: its agent and kubelet, which process the pods bound to it.

Like real agents the node is level-based: an event carries the current pod, and a repeated event changes nothing. Tests
can make the node delay events, reject the next pod, or crash and restart.
"""

from collections import deque
from collections.abc import Callable, Mapping
from datetime import datetime

from koord_numa.core.kubelet.state import ContainerGrant, KubeletNode
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.sandbox.apiserver import ApiError, DeleteOptions, DirectStore
from koord_numa.sandbox.machines.agents.agent import (
    WRONG_PLACEMENT,
    AdmittedPod,
    NodeAgent,
    RefusedPod,
    RejectedPod,
    capacity_of,
)
from koord_numa.sandbox.machines.agents.koordinator_agent import KoordinatorAgent
from koord_numa.sandbox.machines.agents.koordlet_devices import KoordletDevices
from koord_numa.sandbox.machines.agents.kubelet_agent import KubeletAgent
from koord_numa.sandbox.machines.agents.kubelet_files import KubeletMemory
from koord_numa.sandbox.machines.hardware.description import NodeDescription, Style
from koord_numa.sandbox.machines.hardware.topologies import Json, node_object, node_status
from koord_numa.sandbox.machines.history import History
from koord_numa.sandbox.machines.pod_status import ended, refused, running
from koord_numa.wire import WireError, parse_pod
from koord_numa.wire.kubelet_state import kubelet_state_text
from koord_numa.wire.names import KUBELET_STATE, TOPOLOGY_GROUP, TOPOLOGY_PLURAL

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
        self._agent = _agent(description)
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


def _agent(description: NodeDescription) -> NodeAgent:
    return KubeletAgent(description) if description.style is Style.KUBELET else KoordinatorAgent(description)
