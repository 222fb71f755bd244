"""Devices by id as the page, the command line and the metrics show them."""

from koord_numa.app.metrics import device_metrics
from koord_numa.core.value_objects import replace
from koord_numa.view.documents.devices_by_id import devices_by_id, groups_text, switch_rows
from tests.core.devices.rack import held, inventory
from tests.engine.world import World, make_node, make_pod, make_world


def rack() -> World:
    """A node of four GPUs, one of which is unhealthy and one of which two pods share, and two NICs."""
    world = make_world(make_node("node"))
    world.engine.handlers.devices.observe("ADDED", replace(inventory("0a 0a 1b! ?", "0a 1b"), node="node"))
    for name, use in (("a", "gpu1:30 rdma0:1"), ("b", "gpu1:20")):
        world.engine.handlers.bound_pods.observe("ADDED", replace(make_pod(name), node="node", devices=held(use)))
    return world


def test_switches_with_holders() -> None:
    """By NUMA node and switch; a device without a switch comes last."""
    found = devices_by_id(rack().engine.cache.nodes["node"])
    assert found is not None
    assert [*switch_rows(found)] == [
        ["0", "a", "gpu 0 free, gpu 1 50% free (default/a, default/b), rdma 0 99% free (default/a)"],
        ["1", "b", "gpu 2 unhealthy, rdma 1 free"],
        ["-", "-", "gpu 3 free"],
    ]
    assert groups_text(found) == "free groups of GPUs: 0 of 4, 0 of 2, 2 of 1"
    assert found["switches"][0]["devices"][0] == {
        "type": "gpu",
        "minor": 0,
        "id": "gpu-0",
        "healthy": True,
        "freePercent": 100,
        "pods": [],
    }


def test_a_node_without_a_device_object_has_none() -> None:
    """The page then shows nothing."""
    assert devices_by_id(make_world(make_node("node")).engine.cache.nodes["node"]) is None


def test_metrics() -> None:
    """Numbers of the whole cluster."""
    devices, groups = device_metrics(rack().engine.cache.nodes.values())
    assert {tuple(each.labels.values()): each.value for each in devices.samples} == {
        ("gpu", "free"): 2,
        ("gpu", "unhealthy"): 1,
        ("gpu", "used"): 1,
        ("rdma", "free"): 1,
        ("rdma", "used"): 1,
    }
    assert {each.labels["gpus"]: each.value for each in groups.samples} == {"1": 2, "2": 0, "4": 0}
