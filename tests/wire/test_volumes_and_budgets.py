"""Volumes, claims, storage classes and disruption budgets."""

from typing import Any

from koord_numa.core.objects.constraints import DisruptionBudget, LabelSelector, NodeTerm, Operator, Requirement
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from koord_numa.wire.volumes import parse_claim, parse_storage_class, parse_volume
from koord_numa.wire.workloads import parse_budget

ZONE = "topology.kubernetes.io/zone"


def test_a_local_volume() -> None:
    terms = [{"matchExpressions": [{"key": "kubernetes.io/hostname", "operator": "In", "values": ["n"]}]}]
    volume = parse_volume(
        {
            "metadata": {"name": "v", "labels": {ZONE: "b__a"}},
            "spec": {
                "storageClassName": "local",
                "claimRef": {"namespace": "shop", "name": "data", "uid": "c1"},
                "nodeAffinity": {"required": {"nodeSelectorTerms": terms}},
            },
        }
    )
    assert volume == PersistentVolume(
        name="v",
        node_terms=(NodeTerm(labels=(Requirement("kubernetes.io/hostname", Operator.IN, ("n",)),)),),
        zones=((ZONE, ("a", "b")),),
        claim="shop/data",
        claim_uid="c1",
        storage_class="local",
        labels=((ZONE, "b__a"),),
    )


def test_a_volume_for_every_node() -> None:
    assert parse_volume({"metadata": {"name": "v"}}) == PersistentVolume("v")


def test_the_old_annotation_of_a_class_wins_over_the_field() -> None:
    legacy = {"volume.beta.kubernetes.io/storage-class": "old"}
    volume = {"metadata": {"name": "v", "annotations": legacy}, "spec": {"storageClassName": "new"}}
    claim = {"metadata": {"name": "c", "annotations": legacy}, "spec": {"storageClassName": "new"}}
    assert (parse_volume(volume).storage_class, parse_claim(claim).storage_class) == ("old", "old")


def test_a_bound_claim() -> None:
    claim = parse_claim(
        {
            "metadata": {
                "name": "data",
                "namespace": "shop",
                "uid": "c1",
                "annotations": {"pv.kubernetes.io/bind-completed": "yes", "volume.kubernetes.io/selected-node": "n"},
                "ownerReferences": [{"kind": "Pod", "name": "web", "uid": "u1", "controller": True}],
            },
            "spec": {"volumeName": "v", "storageClassName": "local", "accessModes": ["ReadWriteOncePod"]},
        }
    )
    assert claim == PersistentVolumeClaim(
        namespace="shop",
        name="data",
        uid="c1",
        volume="v",
        bound=True,
        storage_class="local",
        selected_node="n",
        access_modes=frozenset({"ReadWriteOncePod"}),
        owner="u1",
    )


def test_waiting_claims() -> None:
    def claim(**spec: Any) -> PersistentVolumeClaim:
        return parse_claim({"metadata": {"name": "c"}, "spec": spec})

    assert claim() == PersistentVolumeClaim("default", "c", storage_class=None)
    assert claim(storageClassName="") == PersistentVolumeClaim("default", "c", storage_class="")
    assert claim(volumeName="v") == PersistentVolumeClaim("default", "c", volume="v", bound=False)


def test_storage_classes() -> None:
    topology = {"matchLabelExpressions": [{"key": ZONE, "values": ["b", "a"]}]}
    local = {
        "metadata": {"name": "local", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
        "provisioner": "kubernetes.io/no-provisioner",
        "volumeBindingMode": "WaitForFirstConsumer",
        "allowedTopologies": [topology],
    }
    assert parse_storage_class(local) == StorageClass(
        name="local",
        waits=True,
        topologies=(NodeTerm(labels=(Requirement(ZONE, Operator.IN, ("a", "b")),)),),
    )
    made = parse_storage_class({"metadata": {"name": "s"}, "provisioner": "x"})
    assert made == StorageClass("s", provisioner="x")


def budget(**parts: Any) -> DisruptionBudget:
    """A budget with these parts."""
    return parse_budget({"metadata": {"name": "b", "namespace": "shop"}, **parts})


def test_budgets() -> None:
    web = {"selector": {"matchLabels": {"app": "web"}}}
    found = budget(spec=web, status={"disruptionsAllowed": 2, "disruptedPods": {"w2": NOW, "w1": NOW}})
    selector = LabelSelector((Requirement("app", Operator.IN, ("web",)),))
    assert found == DisruptionBudget("shop", "b", selector, 2, ("w1", "w2"))
    assert budget(spec={}) == DisruptionBudget("shop", "b", None)
    assert budget(spec={"selector": {}}, status={"disruptionsAllowed": -1}) == DisruptionBudget(
        "shop", "b", LabelSelector()
    )


def test_a_malformed_budget_protects_every_pod() -> None:
    found = budget(spec={"selector": {"matchLabels": 5}}, status={"disruptionsAllowed": 2})
    assert (found.selector, found.allowed) == (LabelSelector(), 0)
    assert found.problem.startswith("PodDisruptionBudget shop/b: spec.selector.matchLabels: 5 is not an object")


NOW = "2026-01-01T00:00:00Z"
