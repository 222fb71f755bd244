"""
Metrics of the scheduler for Prometheus, with the names and shapes of kube-scheduler where they exist, otherwise
``koord_numa_``.

All values are read at the time of a scrape. This module counts nothing. Metrics per node have a separate page, as
kube-scheduler's ``/metrics/resources``, because a large cluster has many of them.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate
from time import time
from typing import Final, TypeVar

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from koord_numa import __version__
from koord_numa.app.informers import Informers
from koord_numa.app.tasks import LoopLag
from koord_numa.cluster.events import EventRecorder
from koord_numa.cluster.leader_election import LeaderElection, LeaseConflicts, NoElection
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.devices import free_devices, free_partitions
from koord_numa.core.kubelet import REASONS
from koord_numa.core.objects.verdicts import Alignment, Reason
from koord_numa.core.rebind.plan import RebindPhase
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.value_objects import ValueObject
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.gangs.pod_groups import GangState
from koord_numa.engine.metrics import Histogram, RebindMetrics, Result
from koord_numa.engine.rebind import RebindController
from koord_numa.engine.scheduler import Scheduler
from koord_numa.settings import RebindMode

Labels = TypeVar("Labels", bound=tuple[str, ...])


class NodeFreeCpus(ValueObject):
    """Free CPUs of one node in whole CPUs: total, maximum on one NUMA node, and the size of the largest NUMA node."""

    free: int
    largest: int
    size: int

    @property
    def fragmentation(self) -> float:
        """0 if the free CPUs fill one NUMA node as far as possible, near 1 if they are scattered over many."""
        # At most the size of a NUMA node can be free together. The best case is that size instead of all free CPUs.
        together = min(self.free, self.size)
        return 1 - self.largest / together if together else 0.0


class FreeCpuCache:
    """Free CPUs per node, recomputed only for changed nodes, so that a scrape does not delay decisions."""

    def __init__(self) -> None:
        self._known: dict[str, tuple[NodeInfo, int, NodeFreeCpus | None]] = {}

    def of(self, nodes: Mapping[str, NodeInfo]) -> dict[str, NodeFreeCpus]:
        """Return the free CPUs by node, sorted by name, without nodes that have no topology."""
        self._known = {name: self._current(name, nodes[name]) for name in sorted(nodes)}
        return {name: found for name, (_, _, found) in self._known.items() if found is not None}

    def _current(self, name: str, record: NodeInfo) -> tuple[NodeInfo, int, NodeFreeCpus | None]:
        known = self._known.get(name)
        # The revision increases with every change that affects decisions.
        if known is not None and known[0] is record and known[1] == record.revision:
            return known
        return record, record.revision, free_cpus(record)


def free_cpus(record: NodeInfo) -> NodeFreeCpus | None:
    """
    Return the free CPUs of a node, or None without a topology.

    By CPU ids if the scheduler chooses CPUs, by published zones if a kubelet does.
    """
    topology = record.topology
    if topology is None:
        return None
    offer = record.inventory
    if isinstance(offer, Inventory) and offer.machine is not None:
        machine, usable = offer.machine, offer.cpus
        parts = [CpuSet(machine.numa_bits[numa]) & usable for numa in machine.numa_ids]
        left = [len(part - record.ledger.cpus) for part in parts]
        return NodeFreeCpus(sum(left), max(left, default=0), max(map(len, parts), default=0))
    left = [zone.available.get(CPU, 0) // MILLI for zone in topology.zones]
    sizes = [zone.allocatable.get(CPU, 0) // MILLI for zone in topology.zones]
    return NodeFreeCpus(sum(left), max(left, default=0), max(sizes, default=0))


def device_metrics(nodes: Iterable[NodeInfo]) -> Iterator[Metric]:
    """Yield the numbers of devices by id, and of free groups of GPUs."""
    states: Counter[tuple[str, str]] = Counter()
    groups: Counter[int] = Counter()
    largest: Counter[int] = Counter()
    for info in nodes:
        if (offer := info.devices) is None:
            continue
        machine, use = offer.machine, offer.use(info.ledger)
        free = free_devices(machine, use)
        for position, device in enumerate(machine.devices):
            used = "used" if free.used >> position & 1 else "free"
            states[device.type, used if device.healthy else "unhealthy"] += 1
        found = free_partitions(machine, use)
        groups.update(found)
        if found:
            largest[max((size for size, count in found.items() if count), default=0)] += 1
    yield _gauges(
        "koord_numa_devices",
        "Devices by id: free, used (by any pod), unhealthy.",
        ("type", "state"),
        dict(sorted(states.items())),
    )
    yield _gauges(
        "koord_numa_free_gpu_groups",
        "Free partitions (or PCIe switches, NUMA nodes, nodes) of GPUs.",
        ("gpus",),
        {(str(size),): count for size, count in sorted(groups.items())},
    )
    yield _gauges(
        "koord_numa_nodes_by_largest_free_gpu_group",
        "Nodes with GPUs by id, by the number of GPUs of their largest free group.",
        ("gpus",),
        {(str(size),): count for size, count in sorted(largest.items())},
    )


def group_metrics(scheduler: Scheduler) -> Iterator[Metric]:
    """Yield the numbers of groups of pods by state, of attempts, and of reasons of rejections."""
    groups, meter = scheduler.handle.pod_groups, scheduler.metrics.groups
    states = Counter(groups.state_of(key) for key in groups)
    by_state = {(state.value,): states[state] for state in GangState}
    yield _gauges("koord_numa_gangs", "Gangs with pods, by state.", ("state",), by_state)
    yield _counts(
        "koord_numa_group_attempts",
        "Attempts to place a group of pods, by result.",
        "result",
        {result.value: meter.attempts[result] for result in (Result.SCHEDULED, Result.UNSCHEDULABLE, Result.ERROR)},
    )
    yield _counts(
        "koord_numa_group_rejections",
        "Rejected groups, by the rules that reject the blocking member.",
        "reason",
        {reason.value: 0 for reason in Reason} | meter.rejections,
    )
    yield _histogram(
        "koord_numa_group_scheduling_duration_seconds",
        "Time from the first observed member to the bind of the minimum count.",
        (),
        {(): meter.waited},
    )


def kubelet_metrics(scheduler: Scheduler, now: float) -> Iterator[Metric]:
    """Yield the three metric families of kubelets. ``now`` is in seconds since the epoch."""
    found = [info.history.evidence for info in scheduler.cache.nodes.values()]
    yield _gauges(
        "koord_numa_explored_nodes",
        "Nodes on which a pod explores unpublished kubelet options, or was rejected for them.",
        ("state",),
        {("exploring",): sum(bool(one.exploring) for one in found), ("refused",): sum(bool(one) for one in found)},
    )
    dated = [when for one in found if (when := one.latest) is not None]
    yield GaugeMetricFamily(
        "koord_numa_kubelet_evidence_age_seconds_max",
        "Age of the oldest rejection that is evidence of kubelet options; 0 without evidence.",
        value=max(0.0, now - min(dated)) if dated else 0.0,
    )
    yield GaugeMetricFamily(
        "koord_numa_unreadable_topologies",
        "Nodes with an unknown key in the NodeResourceTopology.",
        value=len(scheduler.unreadable.problems),
    )


_WAITING = "Waiting"
"""Label value of a RebindResource with an empty status."""


class RebindCollector(Collector):
    """Collector for the counters of the leader, and for the RebindResources that this replica sees."""

    def __init__(self, counted: RebindMetrics, controller: RebindController) -> None:
        self._counted = counted
        self._controller = controller

    def collect(self) -> Iterable[Metric]:
        """Return every family in a fixed order. Series exist before their first count, so that ``rate`` includes it."""
        found = Counter(rebind.phase for rebind in self._controller.known())
        # A new object has an empty phase, but a label must not be empty.
        phases = {(phase.value or _WAITING,): found[phase] for phase in RebindPhase}
        yield _gauges("koord_numa_rebind_resources", "RebindResources that exist.", ("phase",), phases)
        ended = CounterMetricFamily("koord_numa_rebinds", "Rebinds that ended, by phase.", labels=("phase", "dry_run"))
        for phase in (RebindPhase.SUCCEED, RebindPhase.FAILED):
            for dry_run in (False, True):
                ended.add_metric((phase.value, str(dry_run).lower()), self._counted.ended[phase.value, dry_run])
        yield ended
        yield CounterMetricFamily(
            "koord_numa_rebind_moves", "Changes of a pod's CPUs by rebinds.", value=self._counted.moves
        )
        yield _counts(
            "koord_numa_rebind_crossings",
            "NUMA crossings on nodes before and after rebinds, without dry runs.",
            "when",
            {"before": self._counted.crossings_before, "after": self._counted.crossings_after},
        )
        yield _counts(
            "koord_numa_automatic_rebinds",
            "RebindResources that rebindPolicy created.",
            "mode",
            {mode.value: self._counted.automatic[mode.value] for mode in (RebindMode.PROPOSE, RebindMode.CREATE)},
        )


BIND_FAILURES: Final = ("Conflict", "Forbidden", "Gone", "Invalid", "NodeLeft", "Unavailable", "UnknownOutcome")
"""
Series that exist before their first count, so that ``rate`` includes it. Other series start with their first count.
"""


class MetricSources(ValueObject):
    """The objects that the collectors read."""

    scheduler: Scheduler
    informers: Informers
    lease: LeaderElection | NoElection
    recorder: EventRecorder
    loop_lag: LoopLag
    lease_conflicts: LeaseConflicts

    def topology_ages(self) -> dict[str, float]:
        """
        Return the seconds since the last observed change of each node's topology, or since the start of the watch for
        older ones.
        """
        now = self.scheduler.dependencies.clock()
        nodes = self.scheduler.cache.nodes
        return {name: now - info.topology_seen for name, info in nodes.items() if info.published is not None}


class SchedulerCollector(Collector):
    """Collector for the page of every scrape. Its size does not depend on the size of the cluster."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._free_cpus = FreeCpuCache()

    def collect(self) -> Iterable[Metric]:
        """Return every family, in a fixed order."""
        yield from self._attempts()
        yield from self._queue()
        yield from self._outcomes()
        yield from self._cluster()
        yield from self._process()

    def _attempts(self) -> Iterator[Metric]:
        meter = self._sources.scheduler.metrics
        names = self._sources.scheduler.settings.scheduler_names
        by_result: dict[tuple[str, ...], Histogram] = {
            (result.value, name): meter.attempts[result, name] for result in Result for name in names
        }
        attempts = CounterMetricFamily(
            "scheduler_schedule_attempts", "Attempts to place a pod, by result.", labels=("result", "profile")
        )
        for labels, durations in by_result.items():
            attempts.add_metric(labels, durations.count)
        yield attempts
        yield _histogram(
            "scheduler_scheduling_attempt_duration_seconds",
            "Duration of attempts, including binds.",
            ("result", "profile"),
            by_result,
        )
        yield _histogram(
            "scheduler_scheduling_algorithm_duration_seconds", "Duration of decisions.", (), {(): meter.deciding}
        )
        yield _histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Time from a decision to the result of its bind.",
            ("extension_point",),
            {("Bind",): meter.binding},
        )
        yield _histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Time from the first observation of a pod to its bind, by the number of attempts.",
            ("attempts",),
            {(label,): meter.waited[label] for label in sorted(meter.waited)},
        )
        yield _histogram("scheduler_pod_scheduling_attempts", "Attempts per bound pod.", (), {(): meter.tries})

    def _queue(self) -> Iterator[Metric]:
        numbers = self._sources.scheduler.queue.numbers()
        pending = {(queue,): getattr(numbers, queue) for queue in ("active", "backoff", "unschedulable")}
        yield _gauges("scheduler_pending_pods", "Pods that wait, by queue.", ("queue",), pending)
        incoming = CounterMetricFamily(
            "scheduler_queue_incoming_pods", "Pods that entered a queue, by event.", labels=("queue", "event")
        )
        for labels, count in sorted(self._sources.scheduler.queue.arrivals.items()):
            incoming.add_metric(labels, count)
        yield incoming
        yield _gauges(
            "scheduler_unschedulable_pods",
            "Unschedulable pods by the plugins that reject them. A pod counts for every plugin.",
            ("plugin", "profile"),
            dict(sorted(self._sources.scheduler.queue.refused().items())),
        )
        state = self._sources.scheduler.cache
        sizes = {("nodes",): len(state.nodes), ("pods",): len(state.node_of), ("assumed_pods",): len(state.assumed)}
        yield _gauges("scheduler_cache_size", "Objects in the cache, by type.", ("type",), sizes)

    def _outcomes(self) -> Iterator[Metric]:
        meter = self._sources.scheduler.metrics
        yield _counts(
            "koord_numa_placements",
            "Bound pods by alignment.",
            "alignment",
            {each.value.replace(" ", "_"): meter.placements[each.value] for each in Alignment},
        )
        yield _counts(
            "koord_numa_kubelet_refusals",
            "Pods that a kubelet rejected.",
            "reason",
            dict.fromkeys(REASONS, 0) | meter.refusals,
        )
        yield _counts(
            "koord_numa_bind_failures",
            "Binds that failed; Conflict is a 409.",
            "error",
            dict.fromkeys(BIND_FAILURES, 0) | meter.failures,
        )
        yield CounterMetricFamily(
            "koord_numa_claim_budgets_used",
            "Used budgets for CEL selectors of a ResourceClaim.",
            value=self._sources.scheduler.handle.selector.budgets.used,
        )
        yield _counts(
            "koord_numa_rejections",
            "Rejections of pods, by rule.",
            "reason",
            {reason.value: 0 for reason in Reason} | meter.rejections,
        )
        attempts = sum(meter.preemptions.values())
        yield CounterMetricFamily("scheduler_preemption_attempts", "Preemption attempts.", value=attempts)
        yield _counts("koord_numa_preemptions", "Preemption attempts, by result.", "result", meter.preemptions)
        yield _histogram("scheduler_preemption_victims", "Evicted pods per preemption.", (), {(): meter.victims_each})
        yield CounterMetricFamily("koord_numa_preemption_victims", "Pods evicted by preemption.", value=meter.victims)
        yield GaugeMetricFamily(
            "koord_numa_device_moves", "Moves of one pod that would free 4 devices of a node.", value=meter.device_moves
        )
        yield CounterMetricFamily(
            "koord_numa_device_move_evictions", "Pods evicted to gather free devices.", value=meter.device_evictions
        )

    def _cluster(self) -> Iterator[Metric]:
        nodes = self._sources.scheduler.cache.nodes
        room = self._free_cpus.of(nodes).values()
        yield GaugeMetricFamily(
            "koord_numa_free_cpus", "Whole CPUs that no pod holds.", value=sum(found.free for found in room)
        )
        yield GaugeMetricFamily(
            "koord_numa_largest_aligned_cpus",
            "Maximum number of free CPUs on one NUMA node of the cluster.",
            value=max((found.largest for found in room), default=0),
        )
        spread = [found.fragmentation for found in room if found.free]
        yield GaugeMetricFamily(
            "koord_numa_fragmentation",
            "Mean over nodes: 0 if the free CPUs fill one NUMA node, near 1 if they are scattered.",
            value=sum(spread) / len(spread) if spread else 0.0,
        )
        ages = self._sources.topology_ages().values()
        yield GaugeMetricFamily(
            "koord_numa_topology_age_seconds_max", "Oldest topology data.", value=max(ages, default=0.0)
        )
        held = sum(len(found) for found in self._sources.scheduler.writers.double_holds.values())
        yield GaugeMetricFamily("koord_numa_double_holds", "Pairs of pods that hold the same CPUs.", value=held)
        overcommitted = len(self._sources.scheduler.writers.overcommitted)
        yield GaugeMetricFamily(
            "koord_numa_overcommitted_nodes", "Shared nodes whose requests exceed allocatable.", value=overcommitted
        )
        yield from kubelet_metrics(self._sources.scheduler, time())
        quarantine = self._sources.scheduler.handle.quarantine
        yield _counts("koord_numa_quarantined", "Objects that were quarantined, by kind.", "kind", quarantine.counts)
        yield GaugeMetricFamily("koord_numa_quarantined_objects", "Objects in quarantine.", value=len(quarantine))
        yield _counts(
            "koord_numa_foreign_writes",
            "Binds and resource-status changes of this scheduler's pods by other writers.",
            "kind",
            self._sources.scheduler.writers.foreign,
        )
        untrusted = sum(1 for record in nodes.values() if record.distrust)
        yield GaugeMetricFamily(
            "koord_numa_untrusted_nodes", "Nodes on which the scheduler and the kubelet both own CPUs.", value=untrusted
        )
        yield from device_metrics(nodes.values())
        yield from group_metrics(self._sources.scheduler)

    def _process(self) -> Iterator[Metric]:
        leads = {(self._sources.scheduler.settings.lease.name,): float(self._sources.lease.fresh())}
        yield _gauges("leader_election_master_status", "1 while this process leads.", ("name",), leads)
        rivals = len(self._sources.lease_conflicts.rivals)
        yield GaugeMetricFamily(
            "koord_numa_second_schedulers", "Leases held by other schedulers of the same names.", value=rivals
        )
        age = GaugeMetricFamily(
            "koord_numa_watch_age_seconds", "Time since the last list, event or bookmark.", labels=("resource",)
        )
        relists = CounterMetricFamily("koord_numa_watch_relists", "Complete lists.", labels=("resource",))
        reconnects = CounterMetricFamily("koord_numa_watch_reconnects", "Watches begun again.", labels=("resource",))
        told = CounterMetricFamily("koord_numa_watch_events", "Events and bookmarks.", labels=("resource",))
        for informer in self._sources.informers.all:
            resource = (informer.kind.name,)
            age.add_metric(resource, informer.age)
            relists.add_metric(resource, informer.relists)
            reconnects.add_metric(resource, informer.reconnects)
            told.add_metric(resource, informer.events)
        yield from (age, relists, reconnects, told)
        yield _counts(
            "koord_numa_events",
            "Kubernetes events by result.",
            "fate",
            {"posted": self._sources.recorder.posted, "dropped": self._sources.recorder.dropped},
        )
        yield GaugeMetricFamily(
            "koord_numa_loop_lag_seconds", "Last delay of the event loop.", value=self._sources.loop_lag.last
        )
        yield GaugeMetricFamily(
            "koord_numa_loop_lag_seconds_max",
            "Maximum delay of the event loop since the start.",
            value=self._sources.loop_lag.worst,
        )
        yield _gauges("koord_numa_build_info", "What runs here.", ("version",), {(__version__,): 1})


class NodeCollector(Collector):
    """Collector for the page with metrics per node."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._free_cpus = FreeCpuCache()

    def collect(self) -> Iterable[Metric]:
        """Return every family, with nodes sorted by name."""
        nodes, label = self._sources.scheduler.cache.nodes, ("node",)
        rooms = {(name,): room for name, room in self._free_cpus.of(nodes).items()}
        yield _gauges(
            "koord_numa_node_free_cpus",
            "Whole CPUs that no pod holds.",
            label,
            {node: room.free for node, room in rooms.items()},
        )
        yield _gauges(
            "koord_numa_node_largest_aligned_cpus",
            "Maximum number of free CPUs on one NUMA node of the node.",
            label,
            {node: room.largest for node, room in rooms.items()},
        )
        yield _gauges(
            "koord_numa_node_fragmentation",
            "As koord_numa_fragmentation.",
            label,
            {node: room.fragmentation for node, room in rooms.items()},
        )
        yield _gauges(
            "koord_numa_node_topology_age_seconds",
            "Time since the NodeResourceTopology of the node changed.",
            label,
            {(name,): age for name, age in sorted(self._sources.topology_ages().items())},
        )
        yield _gauges(
            "koord_numa_node_untrusted",
            "1 while the scheduler and the kubelet both own CPUs.",
            label,
            {(name,): float(bool(nodes[name].distrust)) for (name,) in rooms},
        )


def _gauges(name: str, about: str, labels: tuple[str, ...], found: Mapping[Labels, float]) -> Metric:
    """Build a family of gauges. ``found`` has a value for every combination of label values."""
    family = GaugeMetricFamily(name, about, labels=labels)
    for values, number in found.items():
        family.add_metric(values, number)
    return family


def _counts(name: str, about: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, about, labels=(label,))
    for value, count in sorted(counts.items()):
        family.add_metric((value,), count)
    return family


def _histogram(name: str, about: str, labels: tuple[str, ...], found: Mapping[tuple[str, ...], Histogram]) -> Metric:
    """Build a histogram family. ``found`` has a histogram for every combination of label values."""
    family = HistogramMetricFamily(name, about, labels=labels)
    for values, histogram in found.items():
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.buckets), strict=True))
        family.add_metric(values, buckets, histogram.total)
    return family
