"""The clusters of kube-scheduler's recorded cases: API objects, read by ``wire`` and told to an engine as its sources would tell them."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from koord_numa.core.objects.request import Pod
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.listers import VolumeLister
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.volumes import (
    parse_attachment,
    parse_claim,
    parse_csi_driver,
    parse_csi_node,
    parse_storage_class,
    parse_volume,
)
from koord_numa.wire.workloads import parse_budget, parse_namespace
from tests.conformance.vectors import Case
from tests.engine.world import World, make_world


@dataclass(frozen=True)
class Cluster:
    """An engine that knows the objects of a case, and the pod that the case asks about."""

    world: World
    pod: Pod


def load(case: Case, settings: str = "") -> Cluster:
    """Tell an engine of everything that exists in the case."""
    given = case["in"]
    world = make_world(synced=False, settings=settings)
    engine = world.engine
    for namespace in given.get("namespaces") or ():
        engine.namespaces.observe(None, parse_namespace(namespace))
    engine.handlers.nodes.replace([parse_node(_with_uid(node)) for node in given.get("nodes") or ()])
    _volumes(engine.volumes, given)
    engine.handlers.bound_pods.replace(
        [_pod(pod, f"existing-{number}") for number, pod in enumerate(given.get("pods") or ())]
    )
    engine.handlers.budgets.replace([parse_budget(budget) for budget in given.get("pdbs") or ()])
    engine.handlers.nominated_pods.replace(
        [_pod(pod, f"nominated-{i}") for i, pod in enumerate(given.get("nominated") or ())]
    )
    return Cluster(world, replace(_pod(given["pod"], "incoming"), scheduler="koord-numa"))


def _volumes(storage: VolumeLister, given: Mapping[str, Any]) -> None:
    storage.claims.replace([parse_claim(claim) for claim in given.get("pvcs") or ()])
    storage.volumes.replace([parse_volume(volume) for volume in given.get("pvs") or ()])
    storage.classes.replace([parse_storage_class(kind) for kind in given.get("storageclasses") or ()])
    storage.csi_nodes.replace([parse_csi_node(node) for node in given.get("csinodes") or ()])
    storage.drivers.replace([parse_csi_driver(driver) for driver in given.get("csidrivers") or ()])
    storage.attachments.replace([parse_attachment(each) for each in given.get("volumeattachments") or ()])
    storage.synced()


def _pod(obj: Mapping[str, Any], uid: str) -> Pod:
    metadata = {"uid": uid, "name": uid, **(obj.get("metadata") or {})}
    return parse_pod({**obj, "metadata": metadata})


def _with_uid(obj: Mapping[str, Any]) -> dict[str, Any]:
    metadata = obj.get("metadata") or {}
    return {**obj, "metadata": {"uid": f"uid-{metadata.get('name')}", **metadata}}
