"""An object that no parser can read costs that object only, and closes the node that it is about."""

from collections.abc import Mapping
from typing import Any

import pytest

from koord_numa.app import informers, kopf_feed
from koord_numa.app.contained_parsing import UNREADABLE, ContainedParser, bound_to
from koord_numa.core.objects.request import Pod
from koord_numa.wire import parse_pod
from koord_numa.wire.errors import WireError
from tests.cluster.objects import node, pod, until
from tests.e2e.world import JsonObject, shared, world
from tests.engine.world import World, make_node, make_world
from tests.test_operator import operating

ONE: JsonObject = {"machines": [{"name": "n", "sockets": 2, "numa": 1, "cores": 4, "threads": 2, "memory": "16Gi"}]}


def parse(raw: Mapping[str, Any]) -> Pod:
    """A parser with a bug."""
    if "poison" in (raw["metadata"].get("labels") or {}):
        raise OverflowError("int too large")
    return parse_pod(raw)


@pytest.fixture
def here() -> World:
    return make_world(make_node("node"))


def raw(name: str, version: str = "1", node: str = "node", **labels: str) -> dict[str, Any]:
    document = pod(name, node=node)
    document["metadata"] |= {"uid": f"uid-{name}", "resourceVersion": version, "labels": labels}
    return document


def closed(here: World) -> bool:
    return bool(here.engine.cache.nodes["node"].broken)


def test_a_pod_that_cannot_be_read_closes_its_node_until_it_can_or_is_gone(here: World) -> None:
    parser = ContainedParser("pod", parse, here.engine, bound_to)
    assert parser(raw("bad", poison="1")) is None
    assert parser(raw("bad", poison="1")) is None
    assert (closed(here), here.diary.reasons("bad")) == (True, [UNREADABLE])
    assert parser(raw("good")) is not None
    assert closed(here)
    assert parser(raw("bad", "2")) is not None
    assert (closed(here), parser.broken) == (False, {})
    parser(raw("bad", "3", poison="1"))
    parser.gone(raw("bad", "4"))
    assert not closed(here)


def test_a_pod_that_a_complete_list_does_not_show_is_gone(here: World) -> None:
    parser = ContainedParser("pod", parse, here.engine, bound_to)
    parser(raw("bad", poison="1"))
    with pytest.raises(TimeoutError), parser.listing():
        raise TimeoutError
    with parser.listing():
        parser(raw("bad", poison="1"))
    assert closed(here)
    with parser.listing():
        parser(raw("good"))
    assert not closed(here)


def test_objects_without_identity_are_for_others_to_report(here: World) -> None:
    with pytest.raises(WireError):
        ContainedParser("pod", parse_pod, here.engine, bound_to)({"metadata": {}, "spec": {}})
    assert here.engine.handle.quarantine.counts["pod"] == 0


@pytest.mark.parametrize("kind", ["pod", "topology", "node"])
async def test_the_scheduler_goes_on_beside_an_object_that_cannot_be_read(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    places = [module for module in (informers, kopf_feed) if hasattr(module, f"parse_{kind}")]
    original = getattr(places[0], f"parse_{kind}")

    def poisoned(raw: Mapping[str, Any]) -> Any:
        if raw["metadata"]["name"].startswith("bad"):
            raise RecursionError("too deep")
        return original(raw)

    for module in places:
        monkeypatch.setattr(module, f"parse_{kind}", poisoned)
    async with world(tmp_path, ONE) as rack:
        if kind == "pod":
            rack.create([shared("bad")])
        elif kind == "node":
            rack.server.store.create(node("bad"))
        else:
            topology = rack.server.store.list("noderesourcetopologies.topology.node.k8s.io")[0]
            copy = {**topology, "metadata": {"name": "bad"}}
            rack.server.store.create(copy)
        async with operating(rack.server, tmp_path, monkeypatch) as runtime:
            rack.create([shared("good")])
            await until(lambda: "good" not in rack.unbound(), 20)
            assert runtime.scheduler.handle.quarantine.counts[kind] >= 1
            assert not runtime.failure.done()
