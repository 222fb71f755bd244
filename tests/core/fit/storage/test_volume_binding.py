"""Volumes on a node for unbound claims of WaitForFirstConsumer classes."""

from typing import Any

from koord_numa.core.fit.volumes import NO_SPACE, NO_VOLUME, VolumePlan, plan_volumes
from koord_numa.core.objects.constraints import Constraints, LabelSelector, NodeTerm, Operator, Requirement
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.volumes import (
    CsiDriver,
    PersistentVolume,
    PersistentVolumeClaim,
    Storage,
    StorageCapacity,
    StorageClass,
)
from koord_numa.core.value_objects import replace
from tests.core.fit.builders import asks
from tests.tables import each_row

GI = 2**30
HOST = "kubernetes.io/hostname"
RWO = frozenset({"ReadWriteOnce"})
NODE = Node("a", labels={HOST: "a", "zone": "z1"})
LOCAL, MADE = StorageClass("local", waits=True), StorageClass("made", waits=True, provisioner="csi.example.com")


def claim(name: str, size: int = 5, storage_class: str = "local", **fields: Any) -> PersistentVolumeClaim:
    """An unbound claim of so many Gi."""
    return PersistentVolumeClaim(
        "default", name, uid=f"u-{name}", storage_class=storage_class, request=size * GI, access_modes=RWO, **fields
    )


def volume(name: str, size: int = 10, host: str = "a", **fields: Any) -> PersistentVolume:
    """A free local volume of so many Gi on this host."""
    terms = (NodeTerm(labels=(Requirement(HOST, Operator.IN, (host,)),)),)
    given: dict[str, Any] = {
        "node_terms": terms,
        "storage_class": "local",
        "access_modes": RWO,
        "available": True,
    } | fields
    return PersistentVolume(name, capacity=size * GI, **given)


def storage(
    claims: list[PersistentVolumeClaim], volumes: list[PersistentVolume] | None = None, **fields: Any
) -> Storage:
    """These claims and volumes, and a class for local and one for provisioned volumes."""
    by_class: dict[str, dict[str, PersistentVolume]] = {}
    for each in volumes or ():
        by_class.setdefault(each.storage_class, {})[each.name] = each
    given: dict[str, Any] = {"classes": {"local": LOCAL, "made": MADE}} | fields
    return Storage(
        claims={each.key: each for each in claims},
        volumes={each.name: each for each in volumes or ()},
        by_class=by_class,
        **given,
    )


def plan(known: Storage, node: Node = NODE) -> VolumePlan | Rejection:
    """The plan for a pod that uses all these claims."""
    return plan_volumes(asks(Constraints(claims=tuple(sorted(name for _, name in known.claims)))), node, known)


def bindings(found: VolumePlan | Rejection) -> dict[str, str]:
    """Volumes by claim name."""
    assert isinstance(found, VolumePlan), found
    return {name: volume for (_, name), volume in found.bindings}


def refused(found: VolumePlan | Rejection) -> str:
    """Return the reason why there is no plan."""
    assert isinstance(found, Rejection), found
    return found.message


def test_the_smallest_sufficient_accessible_volume_is_taken() -> None:
    volumes = [volume("large", 100), volume("small", 10), volume("tiny", 1), volume("far", 5, host="b")]
    assert bindings(plan(storage([claim("data")], volumes))) == {"data": "small"}


def test_small_claims_are_served_first_and_no_volume_twice() -> None:
    volumes = [volume("small", 10), volume("large", 100)]
    assert bindings(plan(storage([claim("a-large", 50), claim("b-small", 5)], volumes))) == {
        "b-small": "small",
        "a-large": "large",
    }
    assert refused(plan(storage([claim("one"), claim("two")], [volume("small")]))) == NO_VOLUME


SUITS = {
    "too small": {"capacity": 4 * GI},
    "other mode": {"block": True},
    "other access": {"access_modes": frozenset({"ReadOnlyMany"})},
    "in use": {"available": False},
    "another claim's": {"claim": "default/other", "claim_uid": "u-other"},
    "the same name, another uid": {"claim": "default/data", "claim_uid": "u-before"},
    "going": {"deleting": True},
    "other attributes": {"attributes_class": "fast"},
    "malformed": {"problem": "spec.capacity: x"},
}


@each_row("fields", SUITS.values(), ids=SUITS.keys())
def test_a_volume_that_does_not_suit_is_not_taken(fields: dict[str, Any]) -> None:
    assert bindings(plan(storage([claim("data")], [volume("v")]))) == {"data": "v"}
    assert refused(plan(storage([claim("data")], [replace(volume("v"), **fields)]))) == NO_VOLUME


def test_a_selector_chooses_among_volumes() -> None:
    fast = LabelSelector((Requirement("tier", Operator.IN, ("fast",)),))
    volumes = [volume("slow", 10), volume("quick", 20, labels=(("tier", "fast"),))]
    assert bindings(plan(storage([claim("data", selector=fast)], volumes))) == {"data": "quick"}


def test_a_volume_pre_bound_to_the_claim_is_preferred() -> None:
    own = volume("own", 100, claim="default/data", available=False)
    assert bindings(plan(storage([claim("data")], [volume("small", 10), own]))) == {"data": "own"}
    elsewhere = replace(own, node_terms=(NodeTerm(labels=(Requirement("zone", Operator.IN, ("z1", "z2")),)),))
    here = Node("b", labels={HOST: "b", "zone": "z2"})
    assert bindings(plan(storage([claim("data")], [elsewhere]), here)) == {"data": "own"}


def test_what_a_decision_in_flight_has_taken_is_not_free() -> None:
    known = storage([claim("data")], [volume("v")], reserved={"v": ("default", "other")})
    assert refused(plan(known)) == NO_VOLUME
    assert bindings(plan(replace(known, reserved={"v": ("default", "data")}))) == {"data": "v"}


def test_a_class_makes_volumes_in_its_topologies_only() -> None:
    here = NodeTerm(labels=(Requirement("zone", Operator.IN, ("z1",)),))
    known = storage([claim("data", storage_class="made")])
    assert plan(known) == VolumePlan(provisioned=(("default", "data"),))
    assert plan(replace(known, classes={"made": replace(MADE, topologies=(here,))})) == plan(known)
    there = replace(MADE, topologies=(NodeTerm(labels=(Requirement("zone", Operator.IN, ("z2",)),)),))
    assert refused(plan(replace(known, classes={"made": there}))) == NO_VOLUME


def test_published_capacity_must_suffice_if_a_driver_has_it() -> None:
    everywhere, here = LabelSelector(), LabelSelector((Requirement("zone", Operator.IN, ("z1",)),))
    known = storage(
        [claim("data", 5, "made")], drivers={"csi.example.com": CsiDriver("csi.example.com", publishes_capacity=True)}
    )
    assert refused(plan(known)) == NO_SPACE

    def with_room(gi: int, topology: LabelSelector | None) -> Storage:
        return replace(known, capacities={"made": {"c": StorageCapacity("c", "made", topology, gi * GI)}})

    assert refused(plan(with_room(4, everywhere))) == NO_SPACE
    assert refused(plan(with_room(5, None))) == NO_SPACE  # as upstream: no topology is no node
    assert plan(with_room(5, here)) == VolumePlan(provisioned=(("default", "data"),))
    silent = replace(known, drivers={})
    assert plan(silent) == VolumePlan(provisioned=(("default", "data"),))


def test_a_claim_with_a_selected_node_waits_for_that_node() -> None:
    known = storage([claim("data", storage_class="made", selected_node="b")])
    assert refused(plan(known)) == NO_VOLUME
    assert plan(known, Node("b", labels={})) == VolumePlan(provisioned=(("default", "data"),))
    gone = replace(known, node_exists=lambda name: name != "b")
    assert plan(gone) == VolumePlan(provisioned=(("default", "data"),))


def test_a_node_where_the_claim_was_not_bound_is_skipped() -> None:
    known = storage([claim("data", storage_class="made")], failed={("default", "data"): frozenset({"a"})})
    assert refused(plan(known)) == NO_VOLUME
    assert isinstance(plan(known, Node("b")), VolumePlan)
