"""CPUs of spread pods according to a topology: no CPU gets lost or is held twice."""

import pytest

from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.hypothesis import Hypothesis, held_by_init
from koord_numa.core.kubelet.reports import settled
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod
from tests.tables import each_row


def _zone(numa: int, used: int) -> Zone:
    has = {"cpu": 8000}
    return Zone(numa, has, has, {"cpu": 8000 - used * 1000})


@each_row("policy", [KubeletPolicy.NONE, KubeletPolicy.BEST_EFFORT])
@each_row("used", [(8, 4), (4, 8), (6, 6)])
def test_as_many_cpus_are_free_as_before(policy: KubeletPolicy, used: tuple[int, int]) -> None:
    """Under policy none the place of every pod is open, also of one that is not spread any more."""
    state = KubeletState.empty(replace(node("2x1x4x2", policy), ids_are_real=False))
    for uid, cpus in (("a", 2), ("b", 10)):
        answer = admit_pod(state, uid, pod(app(cpus)))
        assert isinstance(answer, Admitted)
        state = answer.state
    one = Hypothesis(state, spread=frozenset({"b"}))
    after = settled(one, ["a", "b"], [_zone(numa, count) for numa, count in enumerate(used)])
    assert after.state.managers.cpus.bit_count() == 4
    held = [len(container.cpus) for each in after.state.pods.values() for container in each.grant.containers]
    assert held == [2, 10]


@pytest.mark.parametrize(("policy", "held"), [(KubeletPolicy.NONE, 0), (KubeletPolicy.BEST_EFFORT, 6)])
def test_held_cpus_of_init_containers_beside_later_containers(policy: KubeletPolicy, held: int) -> None:
    """
    The init container had 8 CPUs of NUMA node 0, and its app turns out to have just 2 of them. Aligned by a hint, the app may have been
    given others; without one both chose from the same 16 CPUs, so that the init container had just 2 of them, too.
    """
    state = KubeletState.empty(replace(node("2x1x4x2", policy), ids_are_real=False))
    answer = admit_pod(state, "a", pod(init(10), app(10)))
    assert isinstance(answer, Admitted)
    one = Hypothesis(answer.state, spread=frozenset({"a"}))
    assert one.state.managers.cpus.bit_count() == 6
    after = settled(one, ["a"], [_zone(0, 2), _zone(1, 8)])
    assert after.state.managers.cpus.bit_count() == 6 - held
    assert after.loose.get("a", 0).bit_count() == held


@each_row("policy", [KubeletPolicy.NONE, KubeletPolicy.BEST_EFFORT, KubeletPolicy.RESTRICTED])
@each_row("used", [(8, 2), (4, 6), (2, 8)])
def test_cpus_of_an_init_container_are_where_its_app_has_them(policy: KubeletPolicy, used: tuple[int, int]) -> None:
    """The app has the same CPUs as its init container, so that nothing is held beside them wherever these turn out to be."""
    state = KubeletState.empty(replace(node("2x1x4x2", policy), ids_are_real=False))
    answer = admit_pod(state, "a", pod(init(10), app(10)))
    assert isinstance(answer, Admitted)
    one = Hypothesis(answer.state, spread=frozenset({"a"}))
    after = settled(one, ["a"], [_zone(numa, count) for numa, count in enumerate(used)])
    grant = after.state.pods["a"].grant
    assert held_by_init(grant) & ~after.loose.get("a", 0) == 0
    assert not any(each.cpus.bits & after.state.managers.cpus for each in grant.containers)
