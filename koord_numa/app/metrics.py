"""
The scheduler's metrics for Prometheus: kube-scheduler's names and shapes where it has them, ``koord_numa_`` for the rest.

Everything is read at the time of a scrape; nothing is counted here. Metrics of single nodes have a page of their own, as
kube-scheduler's ``/metrics/resources``: on a large cluster they are many.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from time import time
from typing import Final

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.registry import Collector

from koord_numa import __version__
from koord_numa.app.free_cpus import FreeCpuCache
from koord_numa.app.informers import Informers
from koord_numa.app.kubelet_metrics import kubelet_metrics
from koord_numa.cluster.events import EventRecorder
from koord_numa.cluster.leader_election import LeaderElection
from koord_numa.cluster.lease_conflicts import LeaseConflicts
from koord_numa.cluster.loop_lag import LoopLag
from koord_numa.cluster.no_election import NoElection
from koord_numa.core.kubelet.demand import REASONS
from koord_numa.core.objects.verdicts import Alignment, Reason
from koord_numa.engine.metrics import Histogram, Result
from koord_numa.engine.scheduler import Scheduler

BIND_FAILURES: Final = ("Conflict", "Forbidden", "Gone", "Invalid", "NodeLeft", "Unavailable", "UnknownOutcome")
"""Series that exist before their first count, so that a rate sees it; others come with theirs."""


@dataclass(frozen=True, slots=True)
class MetricSources:
    """What the collectors read."""

    scheduler: Scheduler
    informers: Informers
    lease: LeaderElection | NoElection
    recorder: EventRecorder
    loop_lag: LoopLag
    lease_conflicts: LeaseConflicts

    def topology_ages(self) -> dict[str, float]:
        """Seconds since a node's topology was last seen to change, by node; since this process began to watch for older ones."""
        now = self.scheduler.dependencies.clock()
        nodes = self.scheduler.cache.nodes
        return {name: now - info.topology_seen for name, info in nodes.items() if info.published is not None}


class SchedulerCollector(Collector):
    """The page for every scrape: its size does not depend on the cluster's."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._free_cpus = FreeCpuCache()

    def collect(self) -> Iterable[Metric]:
        """Every family, in a fixed order."""
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
            "Time that attempts took, their binds included.",
            ("result", "profile"),
            by_result,
        )
        yield _histogram(
            "scheduler_scheduling_algorithm_duration_seconds", "Time that decisions took.", (), {(): meter.deciding}
        )
        yield _histogram(
            "scheduler_framework_extension_point_duration_seconds",
            "Time from a decision until its bind was settled.",
            ("extension_point",),
            {("Bind",): meter.binding},
        )
        yield _histogram(
            "scheduler_pod_scheduling_sli_duration_seconds",
            "Time from the first sight of a pod without a node until it was bound, by its number of attempts.",
            ("attempts",),
            {(label,): meter.waited[label] for label in sorted(meter.waited)},
        )
        yield _histogram(
            "scheduler_pod_scheduling_attempts", "Attempts that bound pods had needed.", (), {(): meter.tries}
        )

    def _queue(self) -> Iterator[Metric]:
        numbers = self._sources.scheduler.queue_numbers()
        pending = GaugeMetricFamily("scheduler_pending_pods", "Pods that wait, by queue.", labels=("queue",))
        for queue in ("active", "backoff", "unschedulable"):
            pending.add_metric((queue,), getattr(numbers, queue))
        yield pending
        incoming = CounterMetricFamily(
            "scheduler_queue_incoming_pods", "Pods that came to a queue, by event.", labels=("queue", "event")
        )
        for labels, count in sorted(self._sources.scheduler.queue.arrivals.items()):
            incoming.add_metric(labels, count)
        yield incoming
        refused = GaugeMetricFamily(
            "scheduler_unschedulable_pods",
            "Unschedulable pods by the plugins that refuse them; a pod counts for each.",
            labels=("plugin", "profile"),
        )
        for labels, count in sorted(self._sources.scheduler.queue.refused().items()):
            refused.add_metric(labels, count)
        yield refused
        state = self._sources.scheduler.cache
        cache = GaugeMetricFamily("scheduler_cache_size", "Objects that decisions see.", labels=("type",))
        for kind, size in (("nodes", state.nodes), ("pods", state.node_of), ("assumed_pods", state.assumed)):
            cache.add_metric((kind,), len(size))
        yield cache

    def _outcomes(self) -> Iterator[Metric]:
        meter = self._sources.scheduler.metrics
        yield _counts(
            "koord_numa_placements",
            "Bound pods by what became of their alignment.",
            "alignment",
            {each.value.replace(" ", "_"): meter.placements[each.value] for each in Alignment},
        )
        yield _counts(
            "koord_numa_kubelet_refusals",
            "Pods that a kubelet refused.",
            "reason",
            dict.fromkeys(REASONS, 0) | meter.refusals,
        )
        yield _counts(
            "koord_numa_bind_failures",
            "Binds that failed; Conflict is a 409.",
            "error",
            dict.fromkeys(BIND_FAILURES, 0) | meter.failures,
        )
        exhausted = CounterMetricFamily(
            "koord_numa_claim_budgets_used", "How often the CEL selectors of a ResourceClaim used up their budget."
        )
        exhausted.add_metric((), self._sources.scheduler.handle.selector.budgets.used)
        yield exhausted
        yield _counts(
            "koord_numa_rejections",
            "Verdicts against pods, by deciding rule.",
            "reason",
            {reason.value: 0 for reason in Reason} | meter.rejections,
        )
        attempts = CounterMetricFamily("scheduler_preemption_attempts", "Attempts to make room for a pod.")
        attempts.add_metric((), sum(meter.preemptions.values()))
        yield attempts
        yield _counts("koord_numa_preemptions", "Attempts to make room, by result.", "result", meter.preemptions)
        yield _histogram("scheduler_preemption_victims", "Pods evicted each time.", (), {(): meter.victims_each})
        victims = CounterMetricFamily("koord_numa_preemption_victims", "Pods evicted to make room.")
        victims.add_metric((), meter.victims)
        yield victims

        yield _gauge(
            "koord_numa_device_moves", "Moves of one pod that would free 4 devices of a node.", meter.device_moves
        )
        evicted = CounterMetricFamily("koord_numa_device_move_evictions", "Pods evicted to gather free devices.")
        evicted.add_metric((), meter.device_evictions)
        yield evicted

    def _cluster(self) -> Iterator[Metric]:
        nodes = self._sources.scheduler.cache.nodes
        room = self._free_cpus.of(nodes).values()
        yield _gauge("koord_numa_free_cpus", "Whole CPUs that no pod holds.", sum(found.free for found in room))
        yield _gauge(
            "koord_numa_largest_aligned_cpus",
            "The most CPUs that one NUMA node of any node has free.",
            max((found.largest for found in room), default=0),
        )
        spread = [found.fragmentation for found in room if found.free]
        yield _gauge(
            "koord_numa_fragmentation",
            "Mean over nodes: 0 where the free CPUs fill one NUMA node as far as they can, near 1 where they are scattered.",
            sum(spread) / len(spread) if spread else 0.0,
        )
        ages = self._sources.topology_ages().values()
        yield _gauge("koord_numa_topology_age_seconds_max", "Oldest topology data.", max(ages, default=0.0))
        held = sum(len(found) for found in self._sources.scheduler.writers.double_holds.values())
        yield _gauge("koord_numa_double_holds", "Pairs of pods that hold the same CPUs.", held)
        overcommitted = len(self._sources.scheduler.writers.overcommitted)
        yield _gauge(
            "koord_numa_overcommitted_nodes", "Shared nodes whose requests exceed what they have.", overcommitted
        )
        yield from kubelet_metrics(self._sources.scheduler, time())
        quarantine = self._sources.scheduler.handle.quarantine
        yield _counts(
            "koord_numa_quarantined", "Objects left alone after a failure, by kind.", "kind", quarantine.counts
        )
        yield _gauge(
            "koord_numa_quarantined_objects", "Objects that have failed and not worked since.", len(quarantine)
        )
        yield _counts(
            "koord_numa_foreign_writes",
            "Binds and resource-status of our pods that another writer made.",
            "kind",
            self._sources.scheduler.writers.foreign,
        )
        untrusted = sum(1 for record in nodes.values() if record.distrust)
        yield _gauge("koord_numa_untrusted_nodes", "Nodes whose CPU owners clash.", untrusted)

    def _process(self) -> Iterator[Metric]:
        leader = GaugeMetricFamily("leader_election_master_status", "1 while this process leads.", labels=("name",))
        leader.add_metric((self._sources.scheduler.settings.lease.name,), float(self._sources.lease.fresh()))
        yield leader
        rivals = len(self._sources.lease_conflicts.rivals)
        yield _gauge("koord_numa_second_schedulers", "Held Leases of other schedulers of our names.", rivals)
        age = GaugeMetricFamily(
            "koord_numa_watch_age_seconds", "Since the last list, event or bookmark.", labels=("resource",)
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
            "Kubernetes events by what became of them.",
            "fate",
            {"posted": self._sources.recorder.posted, "dropped": self._sources.recorder.dropped},
        )
        yield _gauge(
            "koord_numa_loop_lag_seconds", "How late the event loop woke last time.", self._sources.loop_lag.last
        )
        yield _gauge("koord_numa_loop_lag_seconds_max", "The worst since the start.", self._sources.loop_lag.worst)
        build = GaugeMetricFamily("koord_numa_build_info", "What runs here.", labels=("version",))
        build.add_metric((__version__,), 1)
        yield build


class NodeCollector(Collector):
    """The page with numbers of every node."""

    def __init__(self, sources: MetricSources) -> None:
        self._sources = sources
        self._free_cpus = FreeCpuCache()

    def collect(self) -> Iterable[Metric]:
        """Every family, nodes in the order of their names."""
        free = GaugeMetricFamily("koord_numa_node_free_cpus", "Whole CPUs that no pod holds.", labels=("node",))
        largest = GaugeMetricFamily(
            "koord_numa_node_largest_aligned_cpus", "The most that one of its NUMA nodes has free.", labels=("node",)
        )
        fragmentation = GaugeMetricFamily(
            "koord_numa_node_fragmentation", "As koord_numa_fragmentation.", labels=("node",)
        )
        age = GaugeMetricFamily("koord_numa_node_topology_age_seconds", "Since it last changed.", labels=("node",))
        untrusted = GaugeMetricFamily("koord_numa_node_untrusted", "1 while CPU owners clash.", labels=("node",))
        nodes = self._sources.scheduler.cache.nodes
        for name, room in self._free_cpus.of(nodes).items():
            free.add_metric((name,), room.free)
            largest.add_metric((name,), room.largest)
            fragmentation.add_metric((name,), room.fragmentation)
            untrusted.add_metric((name,), float(bool(nodes[name].distrust)))
        for name, seconds in sorted(self._sources.topology_ages().items()):
            age.add_metric((name,), seconds)
        return (free, largest, fragmentation, age, untrusted)


def _gauge(name: str, about: str, value: float) -> Metric:
    family = GaugeMetricFamily(name, about)
    family.add_metric((), value)
    return family


def _counts(name: str, about: str, label: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, about, labels=(label,))
    for value, count in sorted(counts.items()):
        family.add_metric((value,), count)
    return family


def _histogram(name: str, about: str, labels: tuple[str, ...], found: Mapping[tuple[str, ...], Histogram]) -> Metric:
    """``found`` has a histogram for every combination of label values."""
    family = HistogramMetricFamily(name, about, labels=labels)
    for values, histogram in found.items():
        bounds = [*(f"{bound:g}" for bound in histogram.bounds), "+Inf"]
        buckets = list(zip(bounds, accumulate(histogram.buckets), strict=True))
        family.add_metric(values, buckets, histogram.total)
    return family
