"""Filters are asked only for requests that they may refuse somewhere."""

from koord_numa.core.objects.constraints import Constraints, HostPort, NodeTerm, TaintEffect
from koord_numa.core.objects.node import Node, Taint
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.scheduling.filters import FILTERS, Filter, Scope, evaluate, filters_of, node_filters_of
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.state.inventory import Inventory, NodeSnapshot
from koord_numa.core.state.ledger import Ledger
from tests.core.fit.builders import asks
from tests.tables import each_row

PORT = HostPort(80)
DEMANDS = {
    "NodeName": Constraints(node_name="other"),
    "NodeAffinity": Constraints(node_selector=(("zone", "a"),)),
    "NodeDeclaredFeatures": Constraints(features=("A",)),
    "NodePorts": Constraints(host_ports=(PORT,)),
}
WORST = NodeSnapshot(
    Node("worker", unschedulable=True, taints=(Taint("key", TaintEffect.NO_SCHEDULE),)),
    Inventory("worker"),
    Ledger(),
    ports=(PORT,),
)
"""A node that has what every one of these filters may refuse a pod for."""


@each_row("row", FILTERS, ids=lambda row: row.plugin)
def test_a_filter_refuses_no_request_that_it_does_not_concern(row: Filter) -> None:
    profile = Profile()
    for demands in (Constraints(), *DEMANDS.values()):
        request = asks(demands)
        ask = scheduling_request(request, profile)
        assert row in filters_of(request) or row.check(ask, WORST) is None
        assert node_filters_of(request) == tuple(it for it in filters_of(request) if it.scope is not Scope.CLUSTER)


@each_row(("plugin", "demands"), DEMANDS.items())
def test_a_demand_is_held_against_the_node_by_its_filter(plugin: str, demands: Constraints) -> None:
    request, profile = asks(demands), Profile()
    open_node = NodeSnapshot(Node("worker"), Inventory("worker"), Ledger(), {"pods": 10}, ports=(PORT,))
    asked, spared = (
        {row.plugin for row in filters_of(each)} & DEMANDS.keys() for each in (request, asks(Constraints()))
    )
    assert (asked, spared) == ({plugin}, set())
    refused = evaluate(scheduling_request(request, profile), open_node, profile)
    row = next(row for row in FILTERS if row.plugin == plugin)
    assert isinstance(refused, Rejection)
    assert refused.reason in row.events


def test_no_required_term_matches_nothing() -> None:
    no_terms: tuple[NodeTerm, ...] = ()
    assert "NodeAffinity" in {row.plugin for row in filters_of(asks(Constraints(node_terms=no_terms)))}
