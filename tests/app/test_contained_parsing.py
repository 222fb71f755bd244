"""An object that no parser can read costs that object only, and closes the node that it is about."""

from collections.abc import Iterable, Mapping
from typing import Any

import pytest

from koord_numa.app import informers, kopf_feed
from koord_numa.app.kopf_feed import UNREADABLE, ContainedParser, KopfParsers, bound_to, own_name
from koord_numa.cluster.lister import ResyncStore
from koord_numa.core.objects.node import NodeResourceTopology
from koord_numa.core.objects.request import Pod
from koord_numa.engine.event_handlers import ContainedHandler
from koord_numa.handlers.dispatch import Dispatcher, Stores
from koord_numa.sandbox.apiserver import ApiServer, DeleteOptions
from koord_numa.wire import parse_pod
from koord_numa.wire.errors import WireError
from koord_numa.wire.raw_json import UnreadObject
from tests.cluster.objects import node, pod, until
from tests.e2e.world import JsonObject, shared, world
from tests.engine.world import World, make_node, make_pod, make_world
from tests.operator.operating import operating

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


@pytest.mark.parametrize("text", [b'{"metadata":{"uid":"\xff"}}', b"1", b"{"])
def test_a_text_that_is_no_object_ends_nobodys_watch(here: World, text: bytes) -> None:
    """An informer asks its parser to forget a deleted object whatever it is, and survives no other error than a cluster's."""
    parser = ContainedParser("pod", parse_pod, here.engine, bound_to)
    parser(raw("good"))
    with pytest.raises(WireError):
        parser(UnreadObject(text))
    assert not parser.gone(UnreadObject(text))
    assert not closed(here)


def closed(here: World) -> bool:
    return bool(here.engine.cache.nodes["node"].broken)


def test_an_unreadable_pod_closes_its_node(here: World) -> None:
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


def plain(kind: str, version: str = "v1", **more: Any) -> JsonObject:
    """An object that only some parser minds."""
    namespaced = kind in ("PersistentVolumeClaim", "CSIStorageCapacity", "PodDisruptionBudget", "ResourceClaim")
    metadata = {"name": "bad"} | ({"namespace": "default"} if namespaced else {})
    return {"apiVersion": version, "kind": kind, "metadata": metadata, **more}


STORAGE, DEVICES = "storage.k8s.io/v1", "resource.k8s.io/v1"
CLAIM = {"accessModes": ["ReadWriteOnce"], "resources": {"requests": {"storage": "1Gi"}}}
VOLUME = {"accessModes": ["ReadWriteOnce"], "capacity": {"storage": "1Gi"}, "hostPath": {"path": "/"}}
REQUEST = {"devices": {"requests": [{"name": "r", "exactly": {"deviceClassName": "c"}}]}}
SLICE = {
    "driver": "d.com",
    "pool": {"name": "p", "generation": 1, "resourceSliceCount": 1},
    "allNodes": True,
    "devices": [],
}
ATTACHMENT = {"attacher": "d", "nodeName": "n", "source": {"persistentVolumeName": "v"}}

BAD: dict[str, tuple[str, JsonObject]] = {
    "pod": ("pod", shared("bad")),
    "node": ("node", node("bad")),
    "namespace": ("namespace", plain("Namespace")),
    "budget": ("budget", plain("PodDisruptionBudget", "policy/v1", spec={"selector": {}})),
    "claim": ("claim", plain("PersistentVolumeClaim", spec=CLAIM)),
    "volume": ("volume", plain("PersistentVolume", spec=VOLUME)),
    "storage_class": ("storage class", plain("StorageClass", STORAGE, provisioner="d")),
    "csi_node": ("CSINode", plain("CSINode", STORAGE, spec={"drivers": []})),
    "csi_driver": ("CSIDriver", plain("CSIDriver", STORAGE, spec={})),
    "storage_capacity": ("capacity", plain("CSIStorageCapacity", STORAGE, storageClassName="c")),
    "attachment": ("attachment", plain("VolumeAttachment", STORAGE, spec=ATTACHMENT)),
    "resource_claim": ("resource claim", plain("ResourceClaim", DEVICES, spec=REQUEST)),
    "resource_slice": ("resource slice", plain("ResourceSlice", DEVICES, spec=SLICE)),
    "device_class": ("device class", plain("DeviceClass", DEVICES, spec={})),
    "topology": ("topology", {}),
    "rebind": ("rebind", plain("RebindResource", "scheduling.koordinator.sh/v1alpha1", spec={"nodeName": "n"})),
}
"""Every kind that is watched: by the name of its parser, the kind as quarantine calls it, and an object."""


@pytest.mark.parametrize("parser", BAD)
async def test_the_scheduler_continues_beside_an_unreadable_object(
    tmp_path: Any, monkeypatch: pytest.MonkeyPatch, parser: str
) -> None:
    places = [module for module in (informers, kopf_feed) if hasattr(module, f"parse_{parser}")]
    original = getattr(places[0], f"parse_{parser}")

    def poisoned(raw: Mapping[str, Any]) -> Any:
        if raw["metadata"]["name"].startswith("bad"):
            raise RecursionError("too deep")
        return original(raw)

    for module in places:
        monkeypatch.setattr(module, f"parse_{parser}", poisoned)
    kind, bad = BAD[parser]
    async with world(tmp_path, ONE) as rack:
        topology = rack.server.store.list("noderesourcetopologies.topology.node.k8s.io")[0]
        rack.server.store.create(bad or {**topology, "metadata": {"name": "bad"}})
        async with operating(rack.server, tmp_path, monkeypatch) as runtime:
            rack.create([shared("good")])
            await until(lambda: "good" not in rack.unbound())
            await until(lambda: runtime.scheduler.handle.quarantine.counts[kind])
            await until(lambda: told_about_bad(rack.server) & {"Quarantined", "Unreadable"})
            assert not runtime.failure.done()


def told_about_bad(server: ApiServer) -> set[str]:
    """Reasons of events on objects by that name."""
    events = server.store.list("events.events.k8s.io")
    return {event["reason"] for event in events if event["regarding"]["name"] == "bad"}


class FakeHandler:
    """A handler with a bug: one object makes it raise, alone or in a list."""

    def __init__(self) -> None:
        self.known: list[str] = []

    def replace(self, objects: Iterable[Pod]) -> None:
        self.known = []
        for each in objects:
            self.observe(None, each)

    def observe(self, _event: str | None, obj: Pod) -> None:
        if obj.key.name == "bad":
            raise ZeroDivisionError("no CPUs")
        self.known.append(obj.key.name)

    def synced(self) -> None:
        self.known.append("synced")


def test_an_object_that_a_handler_cannot_process_is_left_out(here: World) -> None:
    fragile = FakeHandler()
    handler = ContainedHandler("pod", fragile, here.engine.handle.quarantine)
    handler.replace([make_pod("a"), make_pod("bad"), make_pod("b")])
    handler.observe("MODIFIED", make_pod("bad"))
    handler.observe("ADDED", make_pod("c"))
    handler.synced()
    assert (fragile.known, here.engine.handle.quarantine.counts) == (["a", "b", "c", "synced"], {"pod": 2})


def poison(monkeypatch: pytest.MonkeyPatch, module: Any, parser: str) -> set[str]:
    """Names of objects that this parser cannot read while they are in the set."""
    names, parse = set[str](), getattr(module, parser)

    def poisoned(raw: Mapping[str, Any]) -> Any:
        if raw["metadata"]["name"] in names:
            raise RecursionError("too deep")
        return parse(raw)

    monkeypatch.setattr(module, parser, poisoned)
    return names


async def test_a_pod_deleted_in_an_unreadable_state_is_gone(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The cache knows it from when it could be read."""
    unreadable = poison(monkeypatch, informers, "parse_pod")
    async with world(tmp_path, ONE) as rack, operating(rack.server, tmp_path, monkeypatch) as runtime:
        rack.create([shared("bad")])
        cache = runtime.scheduler.cache
        await until(lambda: "bad" not in rack.unbound() and not cache.assumed and cache.nodes["n"].pods)
        unreadable.add("bad")
        rack.server.store.delete("pods", "bad", "default", DeleteOptions(grace=0))
        await until(lambda: not cache.nodes["n"].pods and not cache.nodes["n"].broken)


def test_a_never_readable_topology_closes_its_node(here: World) -> None:
    def unreadable(_: Mapping[str, Any]) -> NodeResourceTopology:
        raise RecursionError("too deep")

    unused: Any = None
    topologies = ResyncStore(here.engine.handlers.topologies, lambda topology: topology.node)
    parsers = KopfParsers(unused, ContainedParser("topology", unreadable, here.engine, own_name), unused)
    dispatcher = Dispatcher(Stores(unused, topologies, unused), parsers, ("koord-numa",))
    metadata: Any = {"name": "node", "uid": "uid-topology"}
    dispatcher.topology({"type": "ADDED", "object": {"metadata": metadata | {"resourceVersion": "1"}}})
    assert closed(here)
    dispatcher.topology({"type": "DELETED", "object": {"metadata": metadata | {"resourceVersion": "2"}}})
    assert not closed(here)
