"""The steps of a decision: they end it, and what cannot be decided waits."""

from collections.abc import Generator

import pytest

from koord_numa.core.kubelet import belief, prediction, state
from koord_numa.core.kubelet.prediction import NOT_YET, TOO_MANY, would_admit
from koord_numa.core.kubelet.state import OverBudget, limited, spend
from koord_numa.core.kubelet.view import ONE_SLICE, Explorations, KubeletView
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.preempt.dry_run import Nominee
from koord_numa.core.scheduling.filters import ClusterEvent
from koord_numa.core.state.inventory import NodeSnapshot
from koord_numa.core.state.ledger import holding_of
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.cache import Cache
from koord_numa.wire import parse_pod
from tests.kubelets.hardest import QUESTIONS, hardest
from tests.kubelets.node_life import JsonObject, NodeLife


def test_steps_end_with_the_budget_that_they_are_taken_from() -> None:
    spend(1_000_000)  # nothing limits them
    with limited(3):
        with limited(2):
            spend(2)
            with pytest.raises(OverBudget):
                spend()
        spend(3)
        with pytest.raises(OverBudget):
            spend()


@pytest.mark.parametrize("spec", QUESTIONS, ids=["two apps", "init", "devices"])
def test_the_hardest_question_stays_within_its_budget(spec: dict[str, object], monkeypatch: pytest.MonkeyPatch) -> None:
    life = hardest()
    seen = life.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    request = parse_pod(life.pod("question", spec)).request
    first, again = would_admit(request, seen.offer), would_admit(request, seen.offer)
    assert isinstance(first, Rejection) is isinstance(again, Rejection)
    monkeypatch.setattr(prediction, "DECISION", 1)
    monkeypatch.setattr(prediction, "fits_in_every_state", lambda *_: False)
    refused = would_admit(request, seen.offer)
    assert isinstance(refused, Rejection)
    assert refused.detail == TOO_MANY
    assert state._CURRENT.get() is None


def test_slices_give_the_answer_of_one_run() -> None:
    life = hardest()
    seen = life.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    begun: list[None] = []
    later = Explorations(seen.offer.hypotheses, lambda: begun.append(None), steps=20)
    view = replace(seen.offer, explorations=later)
    requests = [parse_pod(life.pod("question", spec)).request for spec in QUESTIONS]
    first = [would_admit(request, view) for request in requests]
    assert len(begun) == sum(isinstance(answer, Rejection) and answer.detail == NOT_YET for answer in first) == 3
    while not later.advance():
        pass
    assert [would_admit(request, view) for request in requests] == [would_admit(it, seen.offer) for it in requests]


def test_a_decision_is_repeated_when_its_slices_are_finished() -> None:
    life, events = hardest(), list[object]()
    cache, info = life.cache, life.cache.nodes["n"]
    cache.on_change = lambda event, *_: events.append(event)
    assert not cache.explore()
    info.explore_later = cache._explore_later
    info.touch()
    seen = info.candidate()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    assert seen.offer.explorations is not None
    seen.offer.explorations.steps = 20
    answer = life.ask(QUESTIONS[1])
    assert isinstance(answer, Rejection)
    assert answer.detail == NOT_YET
    while cache.explore():
        assert len(events) < 2
    assert events == [ClusterEvent.TOPOLOGY_CHANGED]
    answer = life.ask(QUESTIONS[1])
    assert not (isinstance(answer, Rejection) and answer.detail == NOT_YET)


class SlicedLife(NodeLife):
    """A life whose events are replayed in slices, the last of them before the next decision."""

    most_behind = 0

    def _new_cache(self) -> Cache:
        return Cache(lambda *_: None, clock=lambda: self.now, on_unfinished=lambda: None)

    def seen(self) -> NodeSnapshot | None:
        history = self.cache.nodes["n"].history
        if history.busy:
            self.most_behind = max(self.most_behind, len(history.belief._line) if history.belief else 0)
            behind = super().seen()
            assert behind is not None
            assert isinstance(behind.offer, KubeletView)
            answer = would_admit(parse_pod(self.pod("question", QUESTIONS[0])).request, behind.offer)
            assert isinstance(answer, Rejection)
            assert (answer.detail, answer.resolvable) == (NOT_YET, False)
        self._continue()
        return super().seen()

    def ask(self, spec: JsonObject) -> Placement | Rejection:
        answer = super().ask(spec)
        while isinstance(answer, Rejection) and answer.detail == NOT_YET:
            self._continue()
            answer = super().ask(spec)
        return answer

    def _continue(self) -> None:
        while self.cache.explore():
            pass


def test_replays_in_slices_lead_to_the_states_of_replays_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    at_once = hardest(KubeletPolicy.RESTRICTED, pods=10)
    monkeypatch.setattr(belief, "SLICE", 3)
    later = hardest(KubeletPolicy.RESTRICTED, pods=10, of=SlicedLife)
    for life in (at_once, later):
        life.settle()
        life.end(0)
        life.settle()
        life.scan()
        life.deliver()
    answers = [[life.ask(spec) for spec in QUESTIONS] for life in (at_once, later)]
    assert answers[0] == answers[1]
    first, second = [life.cache.nodes["n"].history.belief for life in (at_once, later)]
    assert first is not None
    assert second is not None
    assert (first.hypotheses, first.arrivals, first.left) == (second.hypotheses, second.arrivals, second.left)
    sets = [[(it.when, {*map(frozenset, it.shown)}) for it in one.undated] for one in (first, second)]
    assert sets[0] == sets[1]
    assert isinstance(later, SlicedLife)
    assert later.most_behind > 1  # events waited in line


def test_a_rebuilt_state_is_complete_when_it_is_judged(monkeypatch: pytest.MonkeyPatch) -> None:
    """Preemption asks once whether the rebuilt state helps."""
    life = hardest(KubeletPolicy.RESTRICTED, pods=10, of=SlicedLife)
    monkeypatch.setattr(belief, "SLICE", 3)
    info = life.cache.nodes["n"]

    def helps() -> bool:
        assert info.candidate() is not None
        return not info.history.busy

    assert life.seen() is not None
    assert life.cache.rebuild_where("n", helps)
    assert info.history.belief is not None
    assert info.history.belief.later is info.history.later is not None


def test_topologies_are_judged_again_one_node_at_a_time() -> None:
    """Other tasks run in between: one node takes milliseconds, and a restart moves pods of all nodes."""
    cache = hardest().cache
    cache._moved = {"n", "unknown"}
    judging = cache.judge_again()
    next(judging)
    cache._moved.add("n")  # by an event in between
    assert len(list(judging)) == 1
    assert cache._moved == {"n"}


def _failing() -> Generator[int, None, None]:
    spend(2 * state.SLICE)
    yield 2 * state.SLICE
    raise ValueError("as told")


def test_a_failing_replay_harms_its_node_only() -> None:
    life, failed = hardest(of=SlicedLife), list[str]()
    cache = life.cache
    cache.on_error = lambda name, _: failed.append(name)
    known = cache.nodes["n"].history.belief
    assert known is not None
    known.do(_failing())
    while cache.explore():
        pass
    assert failed == ["n"]
    assert not known.busy  # the node is not closed for ever: a topology starts a new belief
    assert known.lost
    life.settle()
    life.deliver()
    assert cache.nodes["n"].history.belief is not known


def test_a_view_without_continuation_has_one_slice() -> None:
    life = hardest()
    seen = life.seen()
    assert seen is not None
    assert isinstance(seen.offer, KubeletView)
    request = parse_pod(life.pod("question", QUESTIONS[1])).request
    answer = would_admit(request, replace(seen.offer, explorations=Explorations(steps=20)))
    assert isinstance(answer, Rejection)
    assert answer.detail == TOO_MANY


def test_decisions_with_nominees_are_not_continued() -> None:
    life = hardest()
    cache, info = life.cache, life.cache.nodes["n"]
    info.explore_later = cache._explore_later
    pod = parse_pod(life.pod("nominee", QUESTIONS[0]))
    info.expect(Nominee(pod, holding_of(pod)))
    with_nominee, without = info.candidate(), info.candidate_for(pod)
    for seen in (with_nominee, without):  # the second is not kept: its evaluations would never be finished
        assert seen is not None
        assert isinstance(seen.offer, KubeletView)
        assert seen.offer.explorations is ONE_SLICE
    info.expect_no_more(pod.key.uid)
    kept = info.candidate()
    assert kept is not None
    assert isinstance(kept.offer, KubeletView)
    assert kept.offer.explorations is not ONE_SLICE
