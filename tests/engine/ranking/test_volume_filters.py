"""The volume filters over all rows at once answer as the scalar filters do node by node."""

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.fit.volumes import refuse_claims
from koord_numa.core.objects.constraints import (
    Constraints,
    DiskKind,
    InlineDisk,
    LabelSelector,
    NodeTerm,
    Operator,
    Requirement,
)
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodKey, PodRequest
from koord_numa.core.objects.volumes import (
    CsiDriver,
    CsiNode,
    PersistentVolume,
    PersistentVolumeClaim,
    StorageCapacity,
    StorageClass,
    VolumeAttachment,
)
from koord_numa.engine.cache.cache import Cache
from koord_numa.engine.cache.listers import VolumeLister
from koord_numa.engine.ranking.cluster_filters import volume_refusals
from koord_numa.engine.ranking.node_table import NodeTable
from tests.core.fit.storage.test_volumes import fits_volumes

ZONE, BETA_ZONE = "topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone"
RWO = frozenset({"ReadWriteOnce"})
DISKS = [InlineDisk(DiskKind.AWS, "x"), InlineDisk(DiskKind.GCE, "x", read_only=True), InlineDisk(DiskKind.GCE, "x")]


def _terms(dice: Random) -> tuple[NodeTerm, ...] | None:
    kinds = [
        None,
        (NodeTerm(labels=(Requirement(ZONE, Operator.IN, (dice.choice("ab"),)),)),),
        (NodeTerm(fields=(Requirement("metadata.name", Operator.IN, (f"n{dice.randrange(5)}",)),)),),
        (
            NodeTerm(labels=(Requirement("disk", Operator.EXISTS),)),
            NodeTerm(labels=(Requirement(ZONE, Operator.IN, ("c",)),)),
        ),
    ]
    return dice.choice(kinds)


def _volume(dice: Random, name: str, claim: str = "") -> PersistentVolume:
    zones = ((dice.choice([ZONE, BETA_ZONE]), tuple(sorted(dice.sample("abc", 2)))),) if dice.random() < 0.3 else ()
    return PersistentVolume(
        name,
        node_terms=_terms(dice),
        zones=zones,
        claim=claim,
        storage_class="local",
        capacity=dice.randrange(1, 20),
        access_modes=RWO,
        available=not claim,
        driver="d",
        handle=name,
    )


def _claim(dice: Random, name: str) -> PersistentVolumeClaim:
    if dice.random() < 0.5:
        return PersistentVolumeClaim("default", name, volume=f"pv-{name}", bound=True, access_modes=RWO)
    chosen = dice.choice(["", "", "", "n1", "gone"])
    storage_class = dice.choice(["local", "made"])
    request = dice.randrange(1, 15)
    return PersistentVolumeClaim(
        "default", name, storage_class=storage_class, request=request, access_modes=RWO, selected_node=chosen
    )


def _state(dice: Random) -> tuple[Cache, NodeTable, VolumeLister]:
    table = NodeTable()
    cache = Cache(lambda _event, info, _pod: table.changed(info))
    lister = VolumeLister(lambda: None, cache.index, cache.node_exists, lambda: 0.0)
    for number in range(5):
        labels = {"disk": "ssd"} if dice.random() < 0.5 else {}
        if dice.random() < 0.8:
            labels[dice.choice([ZONE, BETA_ZONE])] = dice.choice("abc")
        cache.observe_node(None, Node(f"n{number}", labels=labels, allocatable={"cpu": 8000, "pods": 110}))
        lister.csi_nodes.observe(None, CsiNode(f"n{number}", (("d", dice.randrange(3)), ("p", dice.randrange(3)))))
    for name in "xyz":
        lister.claims.observe(None, _claim(dice, name))
        lister.volumes.observe(None, _volume(dice, f"pv-{name}", f"default/{name}"))
    for number in range(dice.randrange(6)):
        lister.volumes.observe(None, _volume(dice, f"free-{number}"))
    topologies = (NodeTerm(labels=(Requirement(ZONE, Operator.IN, ("a", "b")),)),) if dice.random() < 0.5 else ()
    lister.classes.replace([StorageClass("local", waits=True), StorageClass("made", True, "p", topologies)])
    lister.drivers.observe(None, CsiDriver("p", publishes_capacity=dice.random() < 0.5))
    room = LabelSelector((Requirement(ZONE, Operator.IN, ("a", "c")),))
    lister.capacities.observe(None, StorageCapacity("c", "made", room, dice.randrange(20)))
    lister.attachments.observe(None, VolumeAttachment("at", "n2", "pv-x"))
    for number in range(dice.randrange(4)):
        used = Constraints(claims=tuple(dice.sample("xyz", 1)), disks=tuple(dice.sample(DISKS, dice.randrange(2))))
        key = PodKey("default", f"p{number}", f"u{number}")
        cache.observe_pod(None, Pod(key, PodRequest(constraints=used), node=f"n{dice.randrange(5)}"))
    lister.synced()
    return cache, table, lister


@given(seed=st.integers(0, 2**32))
def test_all_rows_at_once_are_refused_as_node_by_node(seed: int) -> None:
    dice = Random(seed)
    cache, table, lister = _state(dice)
    demands = Constraints(
        claims=tuple(sorted(dice.sample("xyz", dice.randrange(1, 3)))),
        disks=tuple(dice.sample(DISKS, dice.randrange(2))),
    )
    request, storage = PodRequest(constraints=demands), lister.storage()
    if refuse_claims(request, storage) is not None:
        return
    table.refresh()
    refused = np.zeros(table.labels.rows, dtype=np.bool_)
    for mask, _ in volume_refusals(request, storage, table):
        refused |= mask
    for info in cache.nodes.values():
        assert info.node is not None
        alone = fits_volumes(request, info.node, lister.storage())
        assert (alone is not None) == bool(refused[table.row_of[info.name]]), (info.name, alone)
