"""A pod that passes a NUMA node over tells which devices are near it."""

from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.vocabulary import KubeletPolicy
from tests.kubelets.strategies import GPU, container
from tests.kubelets.test_shared_devices import life_of

ONE_GPU = {"containers": [container("app", 1, 1, 1)]}


def test_devices_in_use_are_near_a_numa_node_that_was_passed_over() -> None:
    """Two devices are near each NUMA node. With two in use on NUMA node 0, a third pod passes 1 over only where those are near it, too."""
    life = life_of([0b011, 0b011, 0b100, 0b100], KubeletPolicy.SINGLE_NUMA_NODE, in_full=True)
    for _ in range(3):
        life.place(ONE_GPU)
        life.admit()
        life.hear()
    seen = life.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    found = {}
    for one in seen.offer.hypotheses:
        (first,), (second,), (third,) = (one.reach[uid].values() for uid in ("p1", "p2", "p3"))
        found[third.must] = first.must, second.must, third.may & 0b010
        assert {resource for resource, _ in one.reach["p3"]} == {GPU}
    assert found[0b100] == (0b011, 0b011, 0)
    assert found[0b010][:2] == (0b001, 0b001)
