"""What is known of kubelets whose options are not published, and of topologies that cannot be read, for Prometheus."""

from collections.abc import Iterator

from prometheus_client import Metric
from prometheus_client.core import GaugeMetricFamily

from koord_numa.engine.scheduler import Scheduler


def kubelet_metrics(scheduler: Scheduler, now: float) -> Iterator[Metric]:
    """Three families; ``now`` is seconds since the epoch."""
    found = [info.history.evidence for info in scheduler.cache.nodes.values()]
    explored = GaugeMetricFamily(
        "koord_numa_explored_nodes",
        "Nodes on which a pod finds out about options of the kubelet, or was refused for it.",
        labels=("state",),
    )
    explored.add_metric(("exploring",), sum(bool(one.exploring) for one in found))
    explored.add_metric(("refused",), sum(bool(one) for one in found))
    yield explored
    dated = [when for one in found if (when := one.latest) is not None]
    yield GaugeMetricFamily(
        "koord_numa_kubelet_evidence_age_seconds_max",
        "Age of the oldest refusal by which options of a kubelet are known; 0 without any.",
        value=max(0.0, now - min(dated)) if dated else 0.0,
    )
    yield GaugeMetricFamily(
        "koord_numa_unreadable_topologies",
        "Nodes whose NodeResourceTopology has a key that is not understood.",
        value=len(scheduler.unreadable.problems),
    )
