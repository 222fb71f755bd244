"""
The kubelet's CPU manager, policy static: which NUMA nodes could serve exclusive CPUs, and which CPUs a container gets.

Works on CPU bits that its caller keeps; the order of CPUs inside a NUMA node set is ``core/cpus/static_policy.py``.
"""

from dataclasses import dataclass

from koord_numa.core.cpus.ask import NotEnoughCpus
from koord_numa.core.cpus.static_policy import assign
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.hint_generator import ResourceHints, fewest
from koord_numa.core.kubelet.kubelet_node import KubeletNode, bits_of
from koord_numa.core.kubelet.results import SMT_ALIGNMENT, UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.resources import CPU


@dataclass(frozen=True, slots=True)
class CpuStock:
    """CPUs at one moment, as bits: ``free`` ones, and ``reusable`` ones left by init containers of the pod being admitted."""

    node: KubeletNode
    free: int
    reusable: int = 0

    def wish(self, needed: int) -> ResourceHints:
        """
        Where ``needed`` CPUs could come from.

        Every reusable CPU must be inside; the preferred size counts all CPUs, busy and reserved ones too
        (generateCPUTopologyHints in the kubelet's cpumanager/policy_static.go).
        """
        machine = self.node.machine
        totals = {numa: bits.bit_count() for numa, bits in machine.numa_bits.items() if bits}
        free = {numa: (self.free & machine.numa_bits[numa]).bit_count() for numa in totals}
        pinned = machine.numa_of(CpuSet(self.reusable)) if self.reusable else 0
        missing = needed - self.reusable.bit_count()
        size = fewest(list(totals.values()), needed)

        def fits(mask: int) -> bool:
            return not pinned & ~mask and sum([free[numa] for numa in bits_of(mask)]) >= missing

        also = None
        if self.node.static_options.align_by_socket:
            per_socket = len(totals) // len(machine.socket_bits)
            sockets = -(-size // per_socket) if per_socket else 0

            def also(mask: int) -> bool:
                return self._sockets(mask).bit_count() == sockets

        return ResourceHints(CPU, nodes=sum(1 << numa for numa in totals), size=size, fits=fits, also=also)

    def take(self, needed: int, mask: int | None) -> int | AdmitRejection:
        """
        The CPUs that a container gets: as many as possible inside ``mask``, the rest anywhere.

        As Allocate in the kubelet's cpumanager/policy_static.go; with full-pcpus-only the number of free whole cores is
        checked first, without counting reusable CPUs and regardless of NUMA nodes.
        """
        refusal = self._check_whole_cores(needed)
        if refusal is not None:
            return refusal
        pool = self.free | self.reusable
        if needed > pool.bit_count():
            return AdmitRejection(UNEXPECTED_ADMISSION, f"needed {needed} exclusive CPUs, free {pool.bit_count()}")
        near = pool & self._aligned(mask) if mask is not None else 0
        count_near = min(needed, near.bit_count())
        aligned = self._assign(near, count_near)
        if isinstance(aligned, AdmitRejection):
            return aligned
        others = self._assign(pool & ~aligned, needed - count_near)
        return others if isinstance(others, AdmitRejection) else aligned | others

    def take_fresh(self, needed: int, mask: int | None) -> int | AdmitRejection:
        """As ``take``, if the CPUs were in an order that puts reusable ones last."""
        near = self._aligned(mask) if mask is not None else self.node.machine.bits
        fresh = min(needed, (self.free & near).bit_count())
        first = CpuStock(self.node, self.free & near).take(fresh, None)
        if isinstance(first, AdmitRejection):
            return first
        rest = CpuStock(self.node, self.free & ~first, self.reusable).take(needed - fresh, mask)
        return rest if isinstance(rest, AdmitRejection) else first | rest

    def _check_whole_cores(self, needed: int) -> AdmitRejection | None:
        if not self.node.static_options.full_pcpus_only:
            return None
        threads = self.node.machine.threads_per_core
        if needed % threads:
            return AdmitRejection(SMT_ALIGNMENT, f"{needed} CPUs are not a multiple of {threads} per core")
        whole = (self.free & ~self.node.reserved_cores).bit_count()
        if needed > whole:
            return AdmitRejection(SMT_ALIGNMENT, f"needed {needed} CPUs on whole cores, free {whole}")
        return None

    def _assign(self, pool: int, count: int) -> int | AdmitRejection:
        if not count:
            return 0
        if not self.node.ids_are_real and count <= pool.bit_count() and self._is_on_one_numa(pool):
            return lowest(pool, count)  # of made-up CPUs it matters only how many there are on a NUMA node
        chosen = assign(self.node.machine, CpuSet(pool), count, self.node.static_options)
        if isinstance(chosen, NotEnoughCpus):
            return AdmitRejection(UNEXPECTED_ADMISSION, f"{count} of {pool.bit_count()} exclusive CPUs: {chosen.why}")
        return chosen.bits

    def _is_on_one_numa(self, pool: int) -> bool:
        return any(not pool & ~bits for bits in self.node.machine.numa_bits.values())

    def _aligned(self, mask: int) -> int:
        machine = self.node.machine
        if self.node.static_options.align_by_socket:
            return sum(machine.socket_bits[socket] for socket in bits_of(self._sockets(mask)))
        return sum(machine.numa_bits.get(numa, 0) for numa in bits_of(mask))

    def _sockets(self, mask: int) -> int:
        machine = self.node.machine
        sockets = 0
        for socket, bits in machine.socket_bits.items():
            if any(bits & machine.numa_bits.get(numa, 0) for numa in bits_of(mask)):
                sockets |= 1 << socket
        return sockets


def lowest(pool: int, count: int) -> int:
    """So many of the bits, those with the smallest numbers."""
    rest = pool
    for _ in range(count):
        rest &= rest - 1
    return pool ^ rest
