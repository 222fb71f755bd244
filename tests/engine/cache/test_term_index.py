"""The index of terms finds exactly the terms that select a pod, and the pods that a term selects."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.objects.constraints import Constraints, LabelSelector, Operator, PodTerm, Requirement, selects
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.listers import PodIndex
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.queue.pending_pod import PendingPods, RequestClasses
from koord_numa.settings import Settings
from tests.engine.world import make_pod

NAMESPACES = {"a": {"team": "x"}, "b": {"team": "y"}, "c": {}}
KEYS, VALUES = ("app", "tier"), ("1", "2", "web")
REQUIREMENTS = st.builds(
    Requirement,
    st.sampled_from(KEYS),
    st.sampled_from(list(Operator)),
    st.lists(st.sampled_from(VALUES), max_size=2, unique=True).map(tuple),
)
SELECTORS = st.none() | st.builds(LabelSelector, st.lists(REQUIREMENTS, max_size=2).map(tuple))
TERMS = st.builds(
    PodTerm,
    st.just("zone"),
    SELECTORS,
    st.lists(st.sampled_from(sorted(NAMESPACES)), max_size=2, unique=True).map(tuple),
    st.none() | st.builds(LabelSelector, st.just((Requirement("team", Operator.EXISTS),))),
)
LABELS = st.dictionaries(st.sampled_from(KEYS), st.sampled_from(VALUES)).map(lambda found: tuple(sorted(found.items())))


def pod(name: str, namespace: str, labels: tuple[tuple[str, str], ...], *terms: PodTerm) -> Pod:
    made = make_pod(name)
    request = replace(made.request, constraints=Constraints(anti_affinity=terms), namespace=namespace)
    return replace(made, key=PodKey(namespace, name, f"uid-{name}"), labels=labels, request=request)


def picked(term: PodTerm, waiting: Pod) -> bool:
    """As the API defines it."""
    namespace = waiting.key.namespace
    inside = namespace in term.namespaces or selects(term.namespace_selector, NAMESPACES[namespace])
    return inside and selects(term.selector, dict(waiting.labels))


@given(terms=st.lists(TERMS, max_size=8), removed=st.integers(0, 8), labels=LABELS, namespace=st.sampled_from("abc"))
def test_pickers_are_the_terms_that_select(
    terms: list[PodTerm], removed: int, labels: tuple[tuple[str, str], ...], namespace: str
) -> None:
    index = PodIndex()
    for name, found in NAMESPACES.items():
        index.label_namespace(name, found)
    info = NodeInfo("n")
    placed = [pod(f"placed-{number}", "a", (), term) for number, term in enumerate(terms)]
    for each in placed:
        index.add(info, each)
    for each in placed[:removed]:
        index.remove(info, each)
    waiting = pod("waiting", namespace, labels)
    assert index.pickers(waiting) == {term for term in terms[removed:] if picked(term, waiting)}


@given(terms=st.lists(TERMS, max_size=3))
def test_every_waiting_pod_that_a_term_selects_is_found(terms: list[PodTerm]) -> None:
    pending, classes = PendingPods(), RequestClasses(Settings(), PodIndex())
    for number, (namespace, app, tier) in enumerate(product(NAMESPACES, VALUES, VALUES)):
        waiting = pod(f"p{number}", namespace, (("app", app), ("tier", tier)))
        request_class = classes.of(waiting)
        assert request_class is not None
        pending.observe(waiting, request_class, 0.0)
    found = {each.uid for each in pending.selected_by(terms)}
    assert {each.uid for each in pending if any(picked(term, each.pod) for term in terms)} <= found
    for each in pending:
        pending.pop(each.uid)
    assert not pending._by_anchor
