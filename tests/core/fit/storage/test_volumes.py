"""Claims and bound volumes."""

import pytest

from koord_numa.core.fit.volumes import (
    fits_volume_binding,
    fits_volume_limits,
    fits_volume_restrictions,
    fits_volume_zone,
    refuse_claims,
)
from koord_numa.core.objects.constraints import Constraints, NodeTerm
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim, Storage, StorageClass
from tests.core.fit.builders import asks, label, node
from tests.tables import each_row

REQUEST = asks(Constraints(claims=("data",)))
ZONE = "topology.kubernetes.io/zone"
BOUND = PersistentVolumeClaim("default", "data", volume="pv", bound=True)


def storage(claim: PersistentVolumeClaim | None, *volumes: PersistentVolume) -> Storage:
    return Storage(
        claims={("default", "data"): claim} if claim else {},
        volumes={volume.name: volume for volume in volumes},
        classes={
            "slow": StorageClass("slow", waits=True),
            "usual": StorageClass("usual", provisioner="csi.example.com"),
        },
    )


def fits_volumes(request: PodRequest, node: Node, storage: Storage) -> Rejection | None:
    """All volume filters for a node."""
    filters = (fits_volume_restrictions, fits_volume_limits, fits_volume_binding, fits_volume_zone)
    return next((refusal for fits in filters if (refusal := fits(request, node, storage)) is not None), None)


@each_row(
    ("claim", "message"),
    [
        pytest.param(None, 'persistentvolumeclaim "data" not found', id="absent"),
        pytest.param(
            PersistentVolumeClaim("default", "data", deleting=True),
            'persistentvolumeclaim "data" is being deleted',
            id="going",
        ),
        pytest.param(
            PersistentVolumeClaim("default", "data", problem="spec: [] is not an object"),
            'persistentvolumeclaim "data" is malformed',
            id="malformed",
        ),
        pytest.param(
            PersistentVolumeClaim("default", "data", volume="gone", bound=True, lost=True),
            'persistentvolumeclaim "data" bound to non-existent persistentvolume "gone"',
            id="lost",
        ),
        pytest.param(
            PersistentVolumeClaim("default", "data", storage_class="usual"),
            "pod has unbound immediate PersistentVolumeClaims",
            id="immediate",
        ),
        pytest.param(
            PersistentVolumeClaim("default", "data"),
            "pod has unbound immediate PersistentVolumeClaims",
            id="class-not-defaulted-yet",
        ),
        pytest.param(
            PersistentVolumeClaim("default", "data", storage_class="slow", volume="pv"),
            "pod has unbound immediate PersistentVolumeClaims",
            id="named-a-volume-itself",
        ),
        pytest.param(
            PersistentVolumeClaim("default", "data", storage_class=""),
            "pod has unbound immediate PersistentVolumeClaims",
            id="not-bound-yet",
        ),
        pytest.param(BOUND, 'persistentvolume "pv" not found', id="no-volume"),
    ],
)
def test_claims_that_stand_against_every_node(claim: PersistentVolumeClaim | None, message: str) -> None:
    refusal = refuse_claims(REQUEST, storage(claim))
    assert refusal is not None
    assert (refusal.message, refusal.resolvable) == (message, False)


def test_no_decision_before_volumes_are_known_for_pods_with_any() -> None:
    refusal = refuse_claims(REQUEST, Storage(known=False))
    assert refusal is not None
    assert refusal.message == "volumes are not known yet"
    assert refuse_claims(asks(Constraints()), Storage(known=False)) is None


def test_a_volume_for_one_pod_is_not_shared() -> None:
    exclusive = PersistentVolumeClaim(
        "default", "data", volume="pv", bound=True, access_modes=frozenset({"ReadWriteOncePod"})
    )
    known = Storage({("default", "data"): exclusive}, {"pv": PersistentVolume("pv")})
    assert refuse_claims(REQUEST, known) is None
    used = Storage(known.claims, known.volumes, in_use={("default", "data"): 1})
    refusal = refuse_claims(REQUEST, used)
    assert refusal is not None
    assert refusal.resolvable


@each_row(
    ("volume", "on", "message"),
    [
        pytest.param(PersistentVolume("pv"), node(zone="a"), None, id="anywhere"),
        pytest.param(
            PersistentVolume("pv", (NodeTerm(labels=(label("zone", "a"),)),)), node(zone="a"), None, id="local"
        ),
        pytest.param(
            PersistentVolume("pv", (NodeTerm(labels=(label("zone", "a"),)),)),
            node(zone="b"),
            "node(s) didn't match PersistentVolume's node affinity",
            id="elsewhere",
        ),
        pytest.param(
            PersistentVolume("pv", zones=((ZONE, ("a", "b")),)),
            Node("w", labels={ZONE: "b"}),
            None,
            id="one-of-its-zones",
        ),
        pytest.param(
            PersistentVolume("pv", zones=((ZONE, ("a",)),)),
            Node("w", labels={ZONE: "b"}),
            "node(s) had no available volume zone",
            id="another-zone",
        ),
        pytest.param(PersistentVolume("pv", zones=((ZONE, ("a",)),)), Node("w"), None, id="a-node-without-zones"),
    ],
)
def test_bound_volumes(volume: PersistentVolume, on: Node, message: str | None) -> None:
    known = storage(BOUND, volume)
    assert refuse_claims(REQUEST, known) is None
    refusal = fits_volumes(REQUEST, on, known)
    assert (refusal.message if refusal else None) == message
