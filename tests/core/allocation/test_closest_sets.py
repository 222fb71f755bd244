"""Among equally narrow sets of NUMA nodes, the ones that are close to each other are taken."""

import pytest

from koord_numa.core.allocation.allocate import allocate
from koord_numa.core.allocation.demand import AllocateOptions
from koord_numa.core.cpu_topology import CpuTopology, regular_topology
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import NumaPolicy, QosClass
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import node, pod

TWO_SOCKETS = regular_topology(2, 2, 32, 1)  # NUMA 0 and 1 on one socket, 2 and 3 on the other
WITHOUT_DISTANCES = CpuTopology(TWO_SOCKETS.cpus)


def taken(machine: CpuTopology, held_on_0: int) -> int | None:
    """The NUMA nodes of a pod of 40 CPUs on a node whose NUMA 0 is used already."""
    where = replace(node("2x2x32x1"), machine=machine)
    amounts = {"cpu": held_on_0 * 1000}
    ledger = Ledger.of([Holding(PodKey("default", "codec", "codec"), amounts, numa=((0, amounts),))])
    ask = pod(40_000, 1 << 30, qos=QosClass.LSR, numa=NumaPolicy.RESTRICTED)
    given = allocate(ask, where, ledger, AllocateOptions())
    assert isinstance(given, Placement)
    return given.mask


@pytest.mark.parametrize(
    ("machine", "held", "mask"),
    [
        pytest.param(TWO_SOCKETS, 0, 0b0011, id="equally-close-sets-by-number"),
        pytest.param(TWO_SOCKETS, 28, 0b1100, id="one-socket-rather-than-two"),
        pytest.param(WITHOUT_DISTANCES, 28, 0b0110, id="no-distances"),
    ],
)
def test_a_pod_on_two_numa_nodes(machine: CpuTopology, held: int, mask: int) -> None:
    assert taken(machine, held) == mask
