"""Until when a choice of victims stays right."""

from collections.abc import Callable

from koord_numa.core.preempt.dry_run import PreemptionNode
from koord_numa.core.preempt.victims import select_victims_on_node, still_right
from koord_numa.core.value_objects import replace
from tests.core.preempt.preemption_nodes import UNEVEN, ask, barred, budget, nominee, owned_site, running, terms
from tests.tables import each_row


def test_a_clearance_stays_right_while_victims_leave() -> None:
    site, wants = owned_site(*UNEVEN), ask(4, 10)
    found = select_victims_on_node(wants, site, terms())
    assert found is not None
    leaving = [replace(pod, deleting=pod.key.name == "c") for pod in UNEVEN]
    gone = [pod for pod in UNEVEN if pod.key.name != "c"]
    assert still_right(wants, site, terms(), found)
    assert still_right(wants, owned_site(*leaving), terms(), found)
    assert still_right(wants, owned_site(*gone), terms(), found)


CHANGED = {
    "locked": lambda: barred(owned_site(*UNEVEN)),
    "a-more-important-pod-has-come": lambda: owned_site(
        *UNEVEN[:2], running("d", "6-7", 2, numa=1), running("rival", "4-5", 20, numa=1)
    ),
    "a-victim-is-not-needed-any-more": lambda: owned_site(*UNEVEN[2:]),
    "a-victim-is-as-important-now": lambda: owned_site(
        *UNEVEN[:2], running("c", "4-5", 10, numa=1), running("d", "6-7", 2, numa=1)
    ),
    "a-victim-is-just-being-bound": lambda: owned_site(*UNEVEN, assumed=frozenset({"c"})),
    "the-room-is-kept-for-another": lambda: owned_site(*UNEVEN, nominees=(nominee("n", "4-7", 10, numa=1),)),
}


@each_row("now", CHANGED.values(), ids=CHANGED.keys())
def test_a_clearance_is_not_right_any_more(now: Callable[[], PreemptionNode]) -> None:
    found = select_victims_on_node(ask(4, 10), owned_site(*UNEVEN), terms())
    assert found is not None
    assert not still_right(ask(4, 10), now(), terms(), found)


def test_a_clearance_is_not_right_when_a_budget_has_come() -> None:
    site, wants = owned_site(*UNEVEN), ask(4, 10)
    found = select_victims_on_node(wants, site, terms())
    assert found is not None
    assert not still_right(wants, site, terms(budget("pdb", 1, "c", "d")), found)
    assert still_right(wants, site, terms(budget("pdb", 2, "c", "d")), found)
