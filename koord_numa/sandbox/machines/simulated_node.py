"""
One simulated node: its agent and kubelet, acting on the pods bound to it and on nothing else.

Level-based like the real ones: what it is told is the pod as it is; the same pod told twice changes nothing. On demand it lags behind,
refuses the next pod, or crashes and comes back.
"""

from collections import deque
from collections.abc import Callable, Mapping

from koord_numa.core.kubelet.kubelet_node import KubeletNode
from koord_numa.core.kubelet.results import ContainerGrant
from koord_numa.core.request import Pod, PodKey
from koord_numa.sandbox.apiserver import ApiError, DeleteOptions, DirectStore
from koord_numa.sandbox.machines.agent import WRONG_PLACEMENT, Complaint, NodeAgent, Refused
from koord_numa.sandbox.machines.allocation import stock_of
from koord_numa.sandbox.machines.description import NodeDescription, Style
from koord_numa.sandbox.machines.history import History
from koord_numa.sandbox.machines.koordinator_agent import KoordinatorAgent
from koord_numa.sandbox.machines.kubelet_agent import KubeletAgent
from koord_numa.sandbox.machines.node_objects import Json, node_object, node_status
from koord_numa.sandbox.machines.pod_status import ended, refused, running
from koord_numa.wire import WireError, parse_pod
from koord_numa.wire.names import TOPOLOGY_GROUP, TOPOLOGY_PLURAL

NOT_FOUND = 404
TOPOLOGIES = f"{TOPOLOGY_PLURAL}.{TOPOLOGY_GROUP}"

Clock = Callable[[], str]
"""The time of day as RFC 3339."""


class SimulatedNode:
    """
    A node with a keeper of its books.

    ``violations`` are placements that break a promise of the scheduler, ``refusals`` all pods that were turned away.
    """

    def __init__(
        self, description: NodeDescription, number: int, store: DirectStore, history: History, clock: Clock
    ) -> None:
        self.description = description
        self.violations: list[Complaint] = []
        self.refusals: list[Complaint] = []
        self.dirty = True  # the published topology is not what the books say
        self._store = store
        self._history = history
        history.stocks[description.name] = stock_of(description)
        self._clock = clock
        self._keeper = _keeper(description)
        self._pods: dict[str, Pod] = {}  # those that were taken, by uid
        self._host = f"10.{number // 65536 % 256}.{number // 256 % 256}.{number % 256}"
        self._uid = ""
        self._started = 0
        self._over: set[str] = set()  # uids of pods that were refused or have ended: old news must not bring them back
        self._lagging = False
        self._down = False
        self.listeners: list[Callable[[], None]] = []  # called when pods have started, ended or moved
        self._inbox: deque[tuple[str, Json]] = deque()
        self._refuse_next: deque[Refused] = deque()

    @property
    def name(self) -> str:
        """The node's name."""
        return self.description.name

    @property
    def pods(self) -> Mapping[str, Pod]:
        """The pods that run here, by uid."""
        return self._pods

    @property
    def kubelet(self) -> KubeletNode | None:
        """The kubelet's own facts, where it chooses."""
        return self._keeper.kubelet if isinstance(self._keeper, KubeletAgent) else None

    @property
    def grants(self) -> Mapping[str, tuple[ContainerGrant, ...]]:
        """What the kubelet gave to containers, by pod uid; nothing where the scheduler chooses."""
        return self._keeper.grants() if isinstance(self._keeper, KubeletAgent) else {}

    def register(self) -> None:
        """Create or update the Node and its topology."""
        node = node_object(self.description, self._clock())
        written = self._store.apply({key: value for key, value in node.items() if key != "status"})
        status = {"status": node_status(self.description, self._clock())}
        self._store.patch("nodes", self.name, status, subresource="status")
        self._uid = str(written["metadata"]["uid"])
        self.publish()

    def publish(self) -> None:
        """Bring the published topology up to date."""
        if self.description.agent:
            self.dirty = False
            return
        topology = self._keeper.topology()
        topology["metadata"]["ownerReferences"] = [
            {"apiVersion": "v1", "kind": "Node", "name": self.name, "uid": self._uid, "controller": True}
        ]
        self._store.apply(topology)
        self.dirty = False

    def observe(self, event: str, obj: Json) -> None:
        """A pod that is bound to this node was seen, or has gone."""
        if self._down:
            return
        if self._lagging:
            self._inbox.append((event, obj))
        else:
            self._act(event, obj)

    def lag(self) -> None:
        """Act on nothing for a while."""
        self._lagging = True

    def catch_up(self) -> None:
        """Act on everything that was missed, and lag no more."""
        self._lagging = False
        while self._inbox:
            self._act(*self._inbox.popleft())

    def refuse_next(self, reason: str, message: str = "as told") -> None:
        """Turn the next pod away that would be taken."""
        self._refuse_next.append(Refused(reason, message))

    def crash(self) -> None:
        """See and do nothing until ``restart``. Containers go on running."""
        self._down = True
        self._inbox.clear()

    def restart(self) -> None:
        """Come back: what ran still runs, what vanished meanwhile is let go, what is new is looked at."""
        self._down = self._lagging = False
        found = {obj["metadata"]["uid"]: obj for obj in self._store.list("pods", fields=f"spec.nodeName={self.name}")}
        for uid in [uid for uid in self._pods if uid not in found]:
            self._let_go(uid)
        for obj in found.values():
            self._act("MODIFIED", obj)

    def finish(self, pod: PodKey, phase: str = "Succeeded") -> None:
        """The pod's containers end."""
        obj = self._store.get("pods", pod.name, pod.namespace)
        self._let_go(pod.uid)
        self._over.add(pod.uid)
        self._write_status(pod, ended(obj, phase, self._clock()))

    def _act(self, event: str, obj: Json) -> None:
        try:
            pod = parse_pod(obj)
        except WireError:
            return  # without name and uid there is nothing that could run
        if event == "DELETED" or pod.finished:
            self._let_go(pod.key.uid)
            self._over.discard(pod.key.uid)
        elif pod.key.uid in self._over:
            return
        elif pod.deleting:
            self._let_go(pod.key.uid)
            self._remove(pod.key)
        elif pod.key.uid not in self._pods:
            self._start(pod, obj)
        elif pod.assignment != self._pods[pod.key.uid].assignment:
            self._rearrange(pod)

    def _start(self, pod: Pod, obj: Json) -> None:
        answer = self._refuse_next.popleft() if self._refuse_next else self._keeper.take(pod)
        if isinstance(answer, Refused):
            self._turn_away(pod, answer)
            return
        self._pods[pod.key.uid] = pod
        self._history.hold(self.name, pod.key, answer.held)
        self._changed()
        if pod.phase != "Running":
            self._started += 1
            address = f"10.{128 + self._started // 65536 % 128}.{self._started // 256 % 256}.{self._started % 256}"
            self._write_status(pod.key, running(obj, self._host, address, self._clock()))

    def _rearrange(self, pod: Pod) -> None:
        """The pod was given other CPUs while it runs. The agent applies them; a wrong choice is on record and ends the pod."""
        answer = self._keeper.take(pod)
        if isinstance(answer, Refused):
            self._let_go(pod.key.uid)
            self._turn_away(pod, answer)
            return
        self._pods[pod.key.uid] = pod
        self._history.hold(self.name, pod.key, answer.held)
        self._changed()

    def _let_go(self, uid: str) -> None:
        pod = self._pods.pop(uid, None)
        if pod is not None:
            self._keeper.drop(uid)
            self._history.release(self.name, pod.key)
            self._changed()

    def _changed(self) -> None:
        self.dirty = True
        for listener in self.listeners:
            listener()

    def _turn_away(self, pod: Pod, answer: Refused) -> None:
        complaint = Complaint(self.name, pod.key, answer.reason, answer.message)
        self.refusals.append(complaint)
        if answer.reason == WRONG_PLACEMENT:
            self.violations.append(complaint)
        self._over.add(pod.key.uid)
        self._write_status(pod.key, refused(answer.reason, answer.message, self._clock()))

    def _write_status(self, pod: PodKey, status: Json) -> None:
        """A pod of the same name that was created since is somebody else: the uid must match."""
        current = self._store.find("pods", pod.name, pod.namespace)
        if current is not None and current["metadata"]["uid"] == pod.uid:
            self._store.patch("pods", pod.name, {"status": status}, pod.namespace, subresource="status")

    def _remove(self, pod: PodKey) -> None:
        """The containers of a deleted pod have stopped: the object may go."""
        try:
            self._store.delete("pods", pod.name, pod.namespace, DeleteOptions(grace=0, uid=pod.uid))
        except ApiError as problem:
            if problem.code not in (NOT_FOUND, 409):
                raise


def _keeper(description: NodeDescription) -> NodeAgent:
    return KubeletAgent(description) if description.style is Style.KUBELET else KoordinatorAgent(description)
