"""Fragmented nodes for the planner's tests: by hand in a line, and at random from a seed."""

from random import Random

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.objects.vocabulary import CpuBindPolicy, CpuExclusivePolicy, NumaExclusive, QosClass
from koord_numa.core.ordering import reallocation_order
from koord_numa.core.rebind.layout import FixedPods, NodeLayout, PinnedPod
from koord_numa.core.rebind.plan import layout_of_pods
from koord_numa.core.value_objects import replace
from tests.machines import machine

SHAPES = ("1x2x4x2", "2x1x8x2", "2x2x8x2", "2x2x4x1", "2x4x8x2", "2x2x16x1", "2x4x24x2")
"""2 to 8 NUMA nodes, 16 to 384 CPUs."""

FULL, SPREAD = CpuBindPolicy.FULL_PCPUS, CpuBindPolicy.SPREAD_BY_PCPUS


def pinned(
    name: str,
    cpus: str,
    bind: CpuBindPolicy = FULL,
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE,
    *,
    required: bool = False,
    fixed_on: CpuTopology | None = None,
) -> PinnedPod:
    """A pod on these CPUs; ``fixed_on`` ties it to the NUMA nodes it sits on."""
    held = CpuSet.parse(cpus)
    cpus_per_numa = None
    if fixed_on is not None:
        cpus_per_numa = {
            n: (held.bits & bits).bit_count() for n, bits in fixed_on.numa_bits.items() if held.bits & bits
        }
    order = reallocation_order(QosClass.LSR, required=required, count=len(held), created=0.0, uid=name)
    return PinnedPod(PodKey("default", name, name), held, bind, required, exclusive, cpus_per_numa, order)


def layout(shape: str, *pods: PinnedPod, fixed: str = "", cpu_limit: dict[int, int] | None = None) -> NodeLayout:
    """A node of this shape."""
    return layout_of_pods(machine(shape), pods, CpuSet.parse(fixed), cpu_limit)


def fragmented(seed: int) -> NodeLayout:
    """A node after a long life: pods of all kinds, scattered or in one piece, 60 to 95 % of the CPUs held."""
    rng = Random(seed)
    shape = rng.choice(SHAPES)
    host = machine(shape)
    free = [cpu.id for cpu in host.cpus]
    rng.shuffle(free)
    budget = int(len(free) * rng.choice([0.6, 0.75, 0.85, 0.95]))
    pods: list[PinnedPod] = []
    for index in range(rng.randint(3, max(4, min(60, len(free) // 5)))):
        count = rng.choice([1, 2, 2, 4, 4, 6, 8, 12, 16])
        if count > budget:
            continue
        budget -= count
        cpus = free[:count]
        if rng.random() < 0.5:
            ascending = sorted(free)
            start = rng.randrange(len(ascending) - count + 1)
            cpus = ascending[start : start + count]
        free = [cpu for cpu in free if cpu not in cpus]
        pods.append(_pinned_pod(rng, index, CpuSet.of(cpus), host))
    return layout_of_pods(host, pods, EMPTY)


def beset(seed: int) -> NodeLayout:
    """A fragmented node with everything that makes it harder: reserved CPUs, little room, pods that stay, wishes to be apart."""
    node, rng = fragmented(seed), Random(seed)
    free = list(CpuSet(node.free(node.now)))
    fixed = CpuSet.of(rng.sample(free, len(free) // 4))
    held = {n: sum((t.cpus.bits & b).bit_count() for t in node.pods) for n, b in node.machine.numa_bits.items()}
    cpu_limit = {numa: rng.randint(count // 2, count + 8) for numa, count in held.items() if rng.random() < 0.7}
    wishes = [NumaExclusive.NONE] * 3 + [NumaExclusive.PREFERRED, NumaExclusive.REQUIRED]
    pods = tuple(replace(one, numa_exclusive=rng.choice(wishes)) for one in node.pods)
    masks = [rng.choice([0, 0, 1 << numa]) for numa in node.machine.numa_ids]
    fixed_pods = FixedPods(*(sum(rng.sample(masks, len(masks) // 2)) for _ in range(4)))
    return replace(node, pods=pods, fixed=fixed, cpu_limit=cpu_limit, fixed_pods=fixed_pods)


def with_pods_that_stay(seed: int) -> NodeLayout:
    """A fragmented node of which a quarter of the pods stay; some of them want to be alone on NUMA nodes where others sit."""
    node, rng = fragmented(seed), Random(seed)
    staying = rng.sample(node.pods, max(1, len(node.pods) // 4))
    kept = 0
    for one in staying:
        units = node.machine.numa_bits.values() if rng.random() < 0.6 else ()
        kept |= sum({unit for unit in units if unit & one.cpus.bits}) | one.cpus.bits
    return replace(node, pods=tuple(one for one in node.pods if one not in staying), fixed=CpuSet(kept))


def _pinned_pod(rng: Random, index: int, cpus: CpuSet, host: CpuTopology) -> PinnedPod:
    bind = rng.choice([FULL, FULL, SPREAD])
    exclusive = rng.choice(
        [CpuExclusivePolicy.NONE] * 6 + [CpuExclusivePolicy.PCPU_LEVEL, CpuExclusivePolicy.NUMA_NODE_LEVEL]
    )
    required = rng.random() < 0.3
    cpus_per_numa = None
    if rng.random() < 0.2:
        cpus_per_numa = {n: (cpus.bits & b).bit_count() for n, b in host.numa_bits.items() if cpus.bits & b}
    qos = rng.choice([QosClass.LSE, QosClass.LSR])
    order = reallocation_order(qos, required=required, count=len(cpus), created=float(index), uid=f"uid-{index}")
    return PinnedPod(
        PodKey("default", f"pod-{index}", f"uid-{index}"), cpus, bind, required, exclusive, cpus_per_numa, order
    )
