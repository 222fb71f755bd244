"""Zones of which an exporter publishes less than nothing."""

from koord_numa.core.objects.node import Zone
from koord_numa.wire import parse_topology


def test_less_than_nothing_is_kept_apart() -> None:
    """As NFD publishes devices that are near several NUMA nodes."""
    resources = [{"name": "vendor.com/gpu", "capacity": 2, "allocatable": 2, "available": "-1"}]
    obj = {"metadata": {"name": "n"}, "zones": [{"name": "node-0", "type": "Node", "resources": resources}]}
    gpus = [{"vendor.com/gpu": count} for count in (2, 2, 0, 1)]
    assert parse_topology(obj).zones == (Zone(0, *gpus),)
