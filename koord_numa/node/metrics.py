"""Metrics of the agent."""

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram

_PREFIX = "koord_numa_node_agent_"


class AgentMetrics:
    """The metrics of an agent."""

    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        self.writes = self._counter("topology_writes_total", "Server-side applies of the NodeResourceTopology.")
        self.errors = Counter(
            f"{_PREFIX}errors_total", "Failed reads and writes, by source.", ["source"], registry=self.registry
        )
        self.differences = Gauge(
            f"{_PREFIX}cpuset_differences", "Pods that run on other CPUs than decided.", registry=self.registry
        )
        self.compared = Gauge(f"{_PREFIX}cpuset_compared", "Pods with a decided cpuset.", registry=self.registry)
        self.missing = Gauge(
            f"{_PREFIX}cpuset_cgroups_missing",
            "Pods with a decided cpuset and a running container whose cgroup is not found.",
            registry=self.registry,
        )
        self.kept_off = self._gauge("interrupts_kept_off", "Interrupts that are kept off exclusive CPUs.")
        self.unmovable = self._gauge(
            "interrupts_unmovable",
            "Interrupts on exclusive CPUs that the kernel does not move.",
        )
        self.returned = self._counter(
            "interrupts_returned_total", "Interrupts that another program has moved back to exclusive CPUs."
        )
        self.isolation_refused = self._gauge(
            "isolation_refused", "Pods whose requested isolation of CPUs is not honored."
        )
        self.updates = self._counter("cpuset_updates_total", "Containers whose cpuset was changed.")
        self.rereads = self._counter("kubelet_rereads_total", "Repeated contradictory readings of the kubelet.")
        self.state_known = Gauge(
            f"{_PREFIX}kubelet_state_known",
            "1 while the kubelet's exact state is known and published, else 0.",
            registry=self.registry,
        )
        self.pinned = Histogram(
            f"{_PREFIX}pinned_seconds",
            "Time from the start of a container to its decided CPUs.",
            # From a container event in time to two missed rounds.
            buckets=(0.01, 0.05, 0.1, 0.5, 1, 2, 5, 10, 30, 60),
            registry=self.registry,
        )

    def _gauge(self, name: str, text: str) -> Gauge:
        return Gauge(_PREFIX + name, text, registry=self.registry)

    def _counter(self, name: str, text: str) -> Counter:
        return Counter(_PREFIX + name, text, registry=self.registry)
