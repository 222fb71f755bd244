"""When each node's topology was last told anew. It judges nothing: an exporter that reports only changes is silent for good reason."""

from time import monotonic

from koord_numa.core.node import NodeResourceTopology
from koord_numa.handlers.resync_store import DELETED, Report
from koord_numa.ports import Clock


class Freshness:
    """Stands between whoever reports topologies and whoever wants them, and remembers the times."""

    def __init__(self, report: Report[NodeResourceTopology], clock: Clock = monotonic) -> None:
        self._report = report
        self._clock = clock
        self._told: dict[str, tuple[str, float]] = {}  # node -> resourceVersion, and when it was first seen

    def observe(self, event: str | None, topology: NodeResourceTopology) -> None:
        """Pass it on. The same version shown again, as after a lost connection, is no news."""
        if event == DELETED:
            self._told.pop(topology.node, None)
        elif self._told.get(topology.node, ("", 0.0))[0] != topology.resource_version:
            self._told[topology.node] = (topology.resource_version, self._clock())
        self._report(event, topology)

    def ages(self) -> dict[str, float]:
        """Seconds since a node's topology was last told anew, by node; since we began to watch for older ones."""
        now = self._clock()
        return {node: now - since for node, (_, since) in self._told.items()}
