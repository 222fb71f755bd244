"""Memory blocks over several NUMA nodes in topologies of resource-topology-exporter: in full on each NUMA node, limited by its size."""

from koord_numa.core.kubelet.admit import admit_pod
from koord_numa.core.kubelet.hypothesis import Hypothesis
from koord_numa.core.kubelet.reports import agrees
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.node import Zone
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from tests.core.kubelet.nodes import GI, app, node, pod
from tests.tables import each_row

EACH = 3 * GI
"""Memory of a NUMA node."""


def _zones(*used: int) -> list[Zone]:
    """Of three NUMA nodes, with so many GiB in use."""
    whole = {"memory": EACH}
    return [Zone(numa, whole, whole, {"memory": EACH - count * GI}) for numa, count in enumerate(used)]


def _with(*blocks: int) -> Hypothesis:
    """Pods with so many GiB each, one after the other; the first takes all three NUMA nodes, and so do the others."""
    memory = {numa: {"memory": EACH} for numa in range(3)}
    state = KubeletState.empty(
        replace(node("3x1x4x1", KubeletPolicy.NONE, memory=memory, cpu_policy="none"), ids_are_real=False)
    )
    for number, block in enumerate(blocks):
        state = admit_pod(state, str(number), pod(app(1, memory=block * GI))).state
    assert [each.mask for one in state.pods.values() for given in one.grant.containers for each in given.memory] == [
        0b111 for _ in blocks
    ]
    return Hypothesis(state)


@each_row(
    ("blocks", "used", "possible"),
    [
        ((7,), (3, 3, 3), True),
        ((7,), (3, 3, 1), True),  # filled up in ascending order
        ((7,), (2, 2, 2), False),
        ((7, 1), (3, 3, 3), True),
        ((7, 1), (3, 3, 2), True),
        ((7, 1), (1, 1, 1), False),
    ],
)
def test_less_use_than_blocks_is_shown_only_without_free_memory(
    blocks: tuple[int, ...], used: tuple[int, ...], possible: bool
) -> None:
    one = _with(*blocks)
    assert agrees(one, list(one.state.pods), _zones(*used)) == possible
