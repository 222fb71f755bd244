"""Pods that get the same amounts of the same NUMA node share one value, also on different nodes."""

from koord_numa.core.allocation.allocate import allocate_demand
from koord_numa.core.allocation.demand import demand_of
from koord_numa.core.objects.request import Container, NumaSpec, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger, holding_of
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import DEFAULTS, GI, SINGLE, node

AMOUNTS = {"cpu": 2000, "memory": 4 * GI}
REQUEST = PodRequest((Container("app", ContainerKind.APP, AMOUNTS, AMOUNTS),), numa=NumaSpec(SINGLE))
POD = Pod(PodKey("ns", "pod", "uid"), REQUEST)


def test_equal_shares_are_one_value() -> None:
    """Shares are also right on another node, and without an amount that the node does not publish."""
    demand = demand_of(REQUEST, DEFAULTS)
    assert not isinstance(demand, Rejection)

    def placed(where: Inventory, ledger: Ledger) -> Placement:
        found = allocate_demand(demand, where, ledger)
        assert isinstance(found, Placement)
        return found

    here, there = node(), replace(node(), node="other")
    without_memory = replace(here, zones=tuple((numa, {"cpu": offer["cpu"]}) for numa, offer in here.zones))
    first, second = placed(here, Ledger()), placed(there, Ledger())
    assert first.numa == ((first.numa[0][0], AMOUNTS),)
    assert first.numa is second.numa
    assert placed(without_memory, Ledger()).numa == ((first.numa[0][0], {"cpu": 2000}),)
    # Ledgers add up what is shared, and leave it as it is.
    ledger = Ledger.of([holding_of(POD, first.assignment)])
    assert placed(here, ledger).numa[0][1] == AMOUNTS
    assert first.numa[0][1] == AMOUNTS
