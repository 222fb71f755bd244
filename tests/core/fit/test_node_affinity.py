"""Node names, selectors and affinity, with every operator."""

import pytest

from koord_numa.core.fit.node_filters import fits_node_affinity, fits_node_name, preferred_weight
from koord_numa.core.objects.constraints import Constraints, NodeTerm, Operator, PreferredNodeTerm
from tests.core.fit.builders import asks, label, node
from tests.tables import each_row

WORKER = node("worker", zone="a", cores="64")
IN, OUT = True, False


@each_row(
    ("term", "matches"),
    [
        pytest.param(NodeTerm(labels=(label("zone", "a", "b"),)), IN, id="in"),
        pytest.param(NodeTerm(labels=(label("zone", "b"),)), OUT, id="not-among"),
        pytest.param(NodeTerm(labels=(label("zone", "b", op=Operator.NOT_IN),)), IN, id="not-in"),
        pytest.param(NodeTerm(labels=(label("rack", "b", op=Operator.NOT_IN),)), IN, id="not-in-absent"),
        pytest.param(NodeTerm(labels=(label("zone", op=Operator.EXISTS),)), IN, id="exists"),
        pytest.param(NodeTerm(labels=(label("rack", op=Operator.EXISTS),)), OUT, id="exists-absent"),
        pytest.param(NodeTerm(labels=(label("rack", op=Operator.DOES_NOT_EXIST),)), IN, id="absent"),
        pytest.param(NodeTerm(labels=(label("cores", "32", op=Operator.GT),)), IN, id="greater"),
        pytest.param(NodeTerm(labels=(label("cores", "64", op=Operator.GT),)), OUT, id="not-greater"),
        pytest.param(NodeTerm(labels=(label("cores", "65", op=Operator.LT),)), IN, id="less"),
        pytest.param(NodeTerm(labels=(label("zone", "1", op=Operator.LT),)), OUT, id="no-number"),
        pytest.param(NodeTerm(fields=(label("metadata.name", "worker"),)), IN, id="by-field"),
        pytest.param(NodeTerm(fields=(label("metadata.name", "other"),)), OUT, id="other-by-field"),
        pytest.param(NodeTerm(), OUT, id="empty-term-matches-nothing"),
        pytest.param(NodeTerm(labels=(label("zone", "a"), label("rack", "r"))), OUT, id="all-must-hold"),
    ],
)
def test_required_terms(term: NodeTerm, *, matches: bool) -> None:
    refusal = fits_node_affinity(asks(Constraints(node_terms=(term,))), WORKER)
    assert (refusal is None) == matches
    if refusal:
        assert refusal.message == "node(s) didn't match Pod's node affinity/selector"


def test_any_term_suffices_and_the_selector_must_hold_besides() -> None:
    terms = (NodeTerm(labels=(label("zone", "b"),)), NodeTerm(labels=(label("zone", "a"),)))
    assert fits_node_affinity(asks(Constraints(node_terms=terms, node_selector=(("cores", "64"),))), WORKER) is None
    refusal = fits_node_affinity(asks(Constraints(node_terms=terms, node_selector=(("cores", "8"),))), WORKER)
    assert refusal is not None
    assert refusal.detail == "the node lacks cores=8"


def test_no_terms_at_all_match_nothing() -> None:
    assert fits_node_affinity(asks(Constraints(node_terms=())), WORKER) is not None


def test_preferred_terms_add_their_weights() -> None:
    wishes = (
        PreferredNodeTerm(5, NodeTerm(labels=(label("zone", "a"),))),
        PreferredNodeTerm(7, NodeTerm(labels=(label("zone", "b"),))),
        PreferredNodeTerm(11, NodeTerm(labels=(label("cores", op=Operator.EXISTS),))),
    )
    assert preferred_weight(asks(Constraints(preferred_nodes=wishes)), WORKER) == 16


@pytest.mark.parametrize(("wanted", "fits"), [("", IN), ("worker", IN), ("other", OUT)])
def test_node_name(wanted: str, *, fits: bool) -> None:
    assert (fits_node_name(asks(Constraints(node_name=wanted)), WORKER) is None) == fits
