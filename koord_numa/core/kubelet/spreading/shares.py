"""
The shares in which a container of a pod may get its CPUs from several NUMA nodes, where containers after it take what is left.

Theory. A container that is larger than a NUMA node, or whose sockets are aligned, takes CPUs of several. Packed, the kubelet uses up
NUMA nodes one after the other, whole cores first: the other thread of a core in use stays free where the next NUMA node has whole cores
(``takeByTopologyNUMAPacked`` in the kubelet's cpu_assignment.go). With ``distribute-cpus-across-numa`` each gives an even share
(``takeByTopologyNUMADistributed``), which follows from how many CPUs are free there. Cores and, perhaps, options are not known, so each
of these is tried. What the last container gets is found out from the topology.

Example: two NUMA nodes of 8 CPUs. Of ``sidecar 10, app 4`` the app has room on the second one after 8 and 2, and on none after 5 and 5.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.bit_sets import lowest
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, Trust, dry_run
from koord_numa.core.kubelet.budget import TooManyWays
from koord_numa.core.kubelet.cpu_assignment import assign
from koord_numa.core.kubelet.cpu_manager import CpuReuse, CpuStock
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.inference.hypothesis import cpus_by_numa
from koord_numa.core.kubelet.options import StaticOptions
from koord_numa.core.kubelet.room import STRICT
from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletScope

MOST_SHARES: Final = 64
"""So many ways are tried in which the containers of one pod may share out CPUs."""

Counts = tuple[int, ...]
"""CPUs of every NUMA node, in the order of the machine's."""

Shares = tuple[Counts, ...]
"""For each container that gets CPUs of several NUMA nodes before the last one, in order; what is missing is as it comes."""


def shares_of(state: KubeletState, request: PodRequest, trust: Trust, reuse: CpuReuse) -> Iterator[Shares]:
    """
    The other shares in which containers of the pod may get their CPUs than a dry run deals them out. Raises ``TooManyWays`` at the end
    where there are more than ``MOST_SHARES``.
    """
    demand = pod_demand(request)
    if not _may_matter(demand, state.node):
        return
    waiting: list[Shares] = [()]
    tried = 0
    while waiting and tried < MOST_SHARES:
        shares = waiting.pop()
        if shares:
            yield shares
        tried += 1
        dealt = Dealt(demand, shares)
        dry_run(state, request, trust, reuse, dealt)
        for at in range(len(shares), len(dealt.taken)):
            waiting += [(*dealt.taken[:at], other) for other in dealt.others[at]]
    if waiting:
        raise TooManyWays


def answer(
    state: KubeletState, request: PodRequest, trust: Trust, reuse: CpuReuse, shares: Shares
) -> DryRunAdmitted | NotAdmitted:
    """A dry run with these shares."""
    dealt = Dealt(pod_demand(request), shares) if shares else None
    return dry_run(state, request, trust, reuse, dealt)


def _may_matter(demand: PodDemand, node: KubeletNode) -> bool:
    """May a container after the first one find less on a NUMA node because of such a share? Other policies admit it all the same."""
    config = node.config
    if len(demand.counts) < 2 or len(node.machine.numa_ids) < 2:
        return False
    if config.topology_policy not in STRICT or config.topology_scope is not KubeletScope.CONTAINER or node.ids_are_real:
        return False
    taking = [part.cpus for _, part in demand.containers if part.cpus]
    largest = max(bits.bit_count() for bits in node.machine.numa_bits.values())
    return node.static_options.align_by_socket or max(taking[:-1]) > largest


@dataclass(slots=True)
class Dealt:
    """What one dry run gives to the containers of a pod: ``taken`` of the shares it deals out, and beside each the ``others``."""

    demand: PodDemand
    shares: Shares
    taken: list[Counts] = field(default_factory=list)
    others: list[Sequence[Counts]] = field(default_factory=list)
    _after: int = field(init=False)

    def __post_init__(self) -> None:
        self._after = sum(1 for _, part in self.demand.containers if part.cpus)

    def __call__(self, stock: CpuStock, bits: int, mask: int | None) -> int:
        """The CPUs of the next container, which a dry run gives ``bits`` by a hint of this mask."""
        self._after -= 1
        node, near = stock.node, stock.near(mask)
        # Where all near are taken, the rest comes from any NUMA nodes.
        fixed = bits & near if bits & ~near else 0
        pool = (stock.free | stock.reusable) & ~near if fixed else near
        room, usual = cpus_by_numa(pool, node), cpus_by_numa(bits & ~fixed, node)
        if not self._after or sum(1 for count in room if count) < 2:
            return bits
        place = len(self.taken)
        chosen = self.shares[place] if place < len(self.shares) else usual
        self.taken.append(chosen)
        self.others.append([each for each in _possible(node, pool, room, usual) if each != chosen])
        return bits if chosen == usual else fixed | _pick(stock, pool, bits, chosen)


def _pick(stock: CpuStock, pool: int, usual: int, chosen: Counts) -> int:
    """So many of the pool on every NUMA node, first those that are taken anyway."""
    found = 0
    for here, count in zip(stock.node.machine.numa_bits.values(), chosen, strict=True):
        own = lowest(usual & here & pool, min(count, (usual & here & pool).bit_count()))
        found |= own | lowest(pool & here & ~own, count - own.bit_count())
    return found


def _possible(node: KubeletNode, pool: int, room: Counts, usual: Counts) -> Iterator[Counts]:
    if node.distributes_across_numa or not node.is_published:
        yield from _even(node, pool, sum(usual))
    if not (node.distributes_across_numa or node.takes_whole_cores):
        yield from _with_cores_in_use(usual, room)


def _even(node: KubeletNode, pool: int, needed: int) -> Iterator[Counts]:
    """An even share of each; of NUMA nodes with equal room the kubelet may put any first."""
    chosen = assign(node.machine, CpuSet(pool), needed, StaticOptions(distribute_across_numa=True))
    if not isinstance(chosen, CpuSet):
        return
    counts, room = cpus_by_numa(chosen.bits, node), cpus_by_numa(pool, node)
    yield counts
    for one in range(len(room)):
        for other in range(one):
            if room[one] == room[other] and counts[one] != counts[other]:
                swapped = list(counts)
                swapped[one], swapped[other] = counts[other], counts[one]
                yield tuple(swapped)


def _with_cores_in_use(packed: Counts, room: Counts) -> Iterator[Counts]:
    """
    One CPU less of a NUMA node that is used up, and one more of the next one.

    With two threads a core an odd number of free CPUs has one whose core is in use, and whole cores of the next NUMA node come before it.
    """
    for less in range(len(room)):
        for more in range(len(room)):
            odd = packed[less] % 2 and packed[more] % 2
            if less != more and odd and packed[less] == room[less] and packed[more] < room[more]:
                yield tuple(count - (at == less) + (at == more) for at, count in enumerate(packed))
