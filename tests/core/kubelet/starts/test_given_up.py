"""A topology after possible states were given up that may agree with it as well."""

import pytest

from koord_numa.core.kubelet import belief
from koord_numa.core.kubelet.belief import TOO_MANY, Belief
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.node_config import ALIGN_BY_SOCKET
from koord_numa.core.kubelet.reports import GivenUp, given_up
from koord_numa.core.kubelet.state import EVENT, KubeletNode, KubeletState
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.resources import MILLI
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import app, finished, node, pod

WHOLE = {"cpu": 8 * MILLI}
ON_THE_SECOND = [Zone(numa, WHOLE, WHOLE, {"cpu": left * MILLI}) for numa, left in enumerate((8, 4))]


def _plain() -> Hypothesis:
    """The pod comes to NUMA node 0, with whatever options but ``align-by-socket``."""
    return Hypothesis(KubeletState.empty(_node()))


def _by_socket() -> Hypothesis:
    """Its CPUs may come from either NUMA node of the socket."""
    on = replace(_node(), aligns_by_socket=True)
    return Hypothesis(KubeletState.empty(on), options=(ALIGN_BY_SOCKET,))


def _node() -> KubeletNode:
    return replace(node("1x2x4x2", policy=KubeletPolicy.RESTRICTED), ids_are_real=False)


def _explained(*starts: Hypothesis, shortened: GivenUp) -> bool:
    one = Belief([*starts])
    one.arrive("uid", pod(app(4)), 0.0)
    one.shortened = shortened
    return finished(one.report([["uid"]], ON_THE_SECOND, lambda _: True, 10.0, certain=True)) is not None


def test_a_topology_shows_an_unlikely_option_among_all_states() -> None:
    assert _explained(_plain(), _by_socket(), shortened=GivenUp.NONE)


@pytest.mark.parametrize(("effort", "explained"), [(1, False), (EVENT, True)])
def test_it_does_not_where_all_likely_states_are_given_up(
    effort: int, *, explained: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One of them may agree, too, as long as no replay reaches them: the node is begun with again, with all options."""
    monkeypatch.setattr(belief, "MOST_EFFORT", effort)
    one = Belief([replace(_plain(), uncertainty=1.0), _by_socket()])
    one.arrive("uid", pod(app(4)), 0.0)
    one.last = one.hypotheses = [each for each in one.last if each.options]
    one.shortened = GivenUp.LIKELY
    assert (finished(one.report([["uid"]], ON_THE_SECOND, lambda _: True, 10.0, certain=True)) is not None) is explained


def test_it_does_where_likely_ones_are_left_that_it_contradicts() -> None:
    assert _explained(_plain(), _by_socket(), shortened=GivenUp.SOME)


def test_unlikely_states_do_not_replace_dropped_likely_states() -> None:
    one = Belief([_by_socket()])
    one.arrive("uid", pod(app(4)), 0.0)
    one.started("uid", 1.0)
    until_then = one.lost
    assert not until_then
    one.shortened = GivenUp.LIKELY
    assert one.lost == TOO_MANY
    one.arrive("later", pod(app(2)), 1_000.0)  # all before it is forgotten and the first arrival is replayed
    assert one.lost == TOO_MANY


def test_likely_states_that_a_replay_finds_again_answer() -> None:
    one = Belief([_plain(), _by_socket()])
    one.arrive("uid", pod(app(4)), 0.0)
    one.last = one.hypotheses = [each for each in one.last if each.options]
    one.shortened = GivenUp.LIKELY
    one.depart("other", 1.0)
    assert not one.lost
    assert any(not each.options for each in one.hypotheses)


def test_likely_states_are_given_up_if_only_others_result() -> None:
    both = [_plain(), _by_socket()]
    assert given_up(both, both[1:]) is GivenUp.LIKELY
    assert given_up(both, both[:1]) is GivenUp.SOME
    assert given_up(both[1:], both[1:]) is GivenUp.SOME
