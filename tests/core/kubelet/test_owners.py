"""Owners of loose CPUs: a hypothesis stands for each vector of what pods' init containers may hold."""

from collections.abc import Iterator, Mapping
from itertools import product
from random import Random

from koord_numa.core.kubelet.admit import DryRunAdmitted, dry_run
from koord_numa.core.kubelet.cpu_manager import CpuReuse
from koord_numa.core.kubelet.hypothesis import Hypothesis, cpus_by_numa, released
from koord_numa.core.kubelet.replay import arrive
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.kubelet.variants import distinct, holding, owners_of, standing_for
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, init, node, pod
from tests.tables import each_row

UIDS = "abcd"


def _with_pods(*uids: str) -> Hypothesis:
    """Each holds two CPUs of NUMA node 0, of which its init container leaves none."""
    state = KubeletState.empty(replace(node("2x1x16x1"), ids_are_real=False))
    for uid in uids:
        request = pod(init(1), app(2))
        answer = dry_run(state, request, reuse=CpuReuse.MOST)
        assert isinstance(answer, DryRunAdmitted)
        state = state.with_pod(uid, request, answer.grant, answer.managers)
    return Hypothesis(state)


def _loose(owners: Mapping[int, str]) -> Hypothesis:
    """With CPUs of these owners loose, by CPU."""
    more: dict[str, int] = {}
    for cpu, uids in owners.items():
        for uid in uids:
            more[uid] = more.get(uid, 0) | 1 << cpu
    return holding(_with_pods(*UIDS), more)


def _vectors(one: Hypothesis) -> set[tuple[int, ...]]:
    """Return all vectors of CPU counts per pod: every loose CPU is free or belongs to one of its owners."""
    choices = [("", *sorted(uids)) for uids in owners_of(one).values()]
    return {tuple(way.count(uid) for uid in UIDS) for way in product(*choices)}


def _draw(dice: Random) -> Iterator[tuple[int, str]]:
    for cpu in dice.sample(range(8, 16), dice.randint(0, 3)):
        yield cpu, "".join(dice.sample(UIDS, dice.choice((1, 1, 2, 3))))


@each_row("seed", range(200), every=4)
def test_one_hypothesis_stands_for_both(seed: int) -> None:
    dice = Random(seed)
    one, other = _loose(dict(_draw(dice))), _loose(dict(_draw(dice)))
    both = standing_for(one, other)
    assert _vectors(both) >= _vectors(one) | _vectors(other)
    # No more are loose than in one of them, and nothing that is held in one is free.
    assert len(owners_of(both)) == max(len(owners_of(one)), len(owners_of(other)))
    kept = distinct([one, other])
    assert set().union(*map(_vectors, kept)) >= _vectors(one) | _vectors(other)


def test_a_hypothesis_that_stands_for_another_stays_as_it_is() -> None:
    one, other = _loose({8: "ab", 9: "c"}), _loose({10: "b"})
    assert standing_for(one, other) is one


def test_a_cpu_stays_loose_for_its_other_owners() -> None:
    """One of ``a`` and ``b`` holds it: where one leaves it is the other's, where both leave it is free."""
    one = _loose({8: "ab"})
    for first, second in ("ab", "ba"):
        after = released(one, first)
        assert after.loose == {second: 1 << 8}
        assert not after.state.managers.cpus >> 8 & 1
        assert released(after, second).state.managers.cpus >> 8 & 1


def test_each_of_the_loose_cpus_may_stay_held() -> None:
    """
    Two CPUs of NUMA node 0 are free and one each of ``a`` and ``b`` loose. A pod of three goes there if one of these is free: nothing
    tells which one then stays held.
    """
    (full,) = arrive(_loose({8: "a", 9: "b"}), "full", pod(app(16 - 8 - 2 - 2))).values()
    assert cpus_by_numa(full.state.managers.cpus, full.state.node) == (2, 16)
    (after,) = (each for each in arrive(full, "c3", pod(app(3))).values() if _on_first(each, "c3"))
    assert _vectors(after) == {(0, 0, 0, 0), (1, 0, 0, 0), (0, 1, 0, 0)}


def test_the_pods_own_leftovers_replace_holdings_of_others() -> None:
    """As in the theory: 2 CPUs free, one of ``a`` loose, and ``init 1, app 2`` comes to a node whose cores may be packed."""
    one = _loose({8: "a"})
    on = replace(one.state.node, packs=True)
    packed = replace(one, state=replace(one.state, node=on))
    (full,) = arrive(packed, "full", pod(app(16 - 8 - 1 - 2))).values()
    assert cpus_by_numa(full.state.managers.cpus, on) == (2, 16)
    after = next(each for each in arrive(full, "d2", pod(init(1), app(2))).values() if _on_first(each, "d2"))
    assert cpus_by_numa(after.state.managers.cpus, on) == (0, 16)
    assert set(owners_of(after).values()) == {frozenset({"a", "d2"})}
    assert cpus_by_numa(released(after, "a").state.managers.cpus, on) == (2, 16)


def _on_first(one: Hypothesis, uid: str) -> bool:
    """Return true if the pod has CPUs of NUMA node 0."""
    held = one.state.pods[uid].grant.containers[-1].cpus.bits
    return bool(cpus_by_numa(held, one.state.node)[0])
