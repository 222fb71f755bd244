"""Background load of a cluster without scheduling: agents publish topologies, nodes send heartbeats, pods change their status."""

import asyncio
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from typing import Any, Final

from koord_numa.sandbox.apiserver import DirectStore

JsonObject = dict[str, Any]

TOPOLOGIES: Final = "noderesourcetopologies.topology.node.k8s.io"


@dataclass(slots=True)
class Background:
    """Updates of objects in turn. What a status says is what a kubelet writes while a pod starts."""

    store: DirectStore
    topologies: list[JsonObject] = field(init=False)
    nodes: list[str] = field(init=False)
    pods: list[tuple[str, str]] = field(init=False)  # namespace and name

    def __post_init__(self) -> None:
        self.topologies = self.store.list(TOPOLOGIES)
        self.nodes = [node["metadata"]["name"] for node in self.store.list("nodes")]
        keys = (pod["metadata"] for pod in self.store.list("pods", fields="spec.nodeName!="))
        self.pods = [(key["namespace"], key["name"]) for key in keys]

    async def run(self, seconds: float, rates: Mapping[str, float]) -> dict[str, int]:
        """Update topologies, nodes and pods at these rates for so long; returns how many updates of each there were."""
        acts: dict[str, Callable[[int], None]] = {
            "topologies": self.publish,
            "nodes": self.heartbeat,
            "pods": self.start,
        }
        work = {kind: asyncio.create_task(paced(seconds, rate, acts[kind])) for kind, rate in rates.items()}
        return {kind: await task for kind, task in work.items()}

    def publish(self, number: int) -> None:
        """A zone of one topology has some CPUs more or less available."""
        topology = self.topologies[number % len(self.topologies)]
        zones = topology["zones"]
        cpu = next(one for one in zones[number % len(zones)]["resources"] if one["name"] == "cpu")
        # Another amount than before, also before this measurement: an update that changes nothing is not sent to watchers.
        taken = int(cpu["allocatable"]) - int(cpu["available"])
        cpu["available"] = str(int(cpu["allocatable"]) - (taken + 1) % 4)
        self.store.patch(TOPOLOGIES, topology["metadata"]["name"], {"zones": zones})

    def heartbeat(self, number: int) -> None:
        """A kubelet says that its node is still ready."""
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        # # the reason changes, or the server would find nothing to write
        ready = {"type": "Ready", "status": "True", "lastHeartbeatTime": now, "reason": f"Turn{number}"}
        node = self.nodes[number % len(self.nodes)]
        self.store.patch("nodes", node, {"status": {"conditions": [ready]}}, subresource="status")

    def start(self, number: int) -> None:
        """One of the four updates with which a pod starts: conditions, its address, its containers, and that it is ready."""
        turn, step = divmod(number, 4)
        namespace, name = self.pods[turn % len(self.pods)]
        self.store.patch("pods", name, {"status": _STARTING[step](turn)}, namespace, subresource="status")


def _conditions(ready: str, turn: int) -> JsonObject:
    since = datetime.fromtimestamp(turn, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    kinds = {"PodScheduled": "True", "Initialized": "True", "ContainersReady": ready, "Ready": ready}
    return {
        "conditions": [{"type": kind, "status": is_so, "lastTransitionTime": since} for kind, is_so in kinds.items()]
    }


def _containers(state: JsonObject, turn: int) -> JsonObject:
    status = {"name": "main", "image": "none", "imageID": "", "ready": "running" in state, "restartCount": turn % 7}
    return {"containerStatuses": [{**status, "state": state}]}


_STARTING: Final[tuple[Callable[[int], JsonObject], ...]] = (
    lambda turn: {"phase": "Pending", **_conditions("False", turn)},
    lambda turn: {
        "podIP": f"10.1.{turn // 250 % 250}.{turn % 250}",
        **_containers({"waiting": {"reason": "Starting"}}, turn),
    },
    lambda turn: {"phase": "Running", **_containers({"running": {"startedAt": "2026-01-01T00:00:00Z"}}, turn)},
    partial(_conditions, "True"),
)


async def paced(seconds: float, rate: float, act: Callable[[int], None]) -> int:
    """Call ``act`` with 0, 1, 2 … at a rate for so long; returns how often."""
    begun, count = time.perf_counter(), int(seconds * rate)
    for number in range(count):
        # To a schedule, not after a pause: what an update costs must not lower the rate.
        await asyncio.sleep(max(0.0, begun + number / rate - time.perf_counter()))
        act(number)
    return count
