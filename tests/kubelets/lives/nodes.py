"""Kubelet-owned nodes of every configuration with which a kubelet starts, drawn from a seed."""

from random import Random
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.machines import NodeDescription, Numbering, Shape, Style
from tests.kubelets.lives.kinds import Kinds
from tests.kubelets.strategies import GIB, GPU

SOCKETS: Final = {1: (1,), 2: (1, 2), 3: (1, 3), 4: (1, 2, 4), 5: (1,), 6: (2, 3), 7: (1,), 8: (2, 4)}
"""In how many sockets so many NUMA nodes may be."""

MOST_CORES: Final = {1: 12, 2: 12, 3: 8, 4: 8, 5: 5, 6: 5, 7: 4, 8: 4}
"""Of a NUMA node, by the number of NUMA nodes: small machines are full after a few pods."""

OFTEN: Final = (1, 2, 2, 2, 2, 3, 4, 4, 4, 5, 6, 7, 8)
"""NUMA nodes of a machine, as often as they are drawn."""

NEAR_FAR: Final = ((12, 32), (12, 32), (11, 21), (20, 20))
"""Distances inside a socket and beyond it; machines that show no sockets are among them."""

CLASHING: Final = (
    ("distribute-cpus-across-cores", "full-pcpus-only"),
    ("distribute-cpus-across-cores", "distribute-cpus-across-numa"),
    ("distribute-cpus-across-cores", "prefer-align-cpus-by-uncorecache"),
    ("prefer-align-cpus-by-uncorecache", "distribute-cpus-across-numa"),
)
"""Options of which a kubelet takes one at most (``NewStaticPolicyOptions`` of cpumanager/policy_options.go)."""


def drawn_node(random: Random, kinds: Kinds) -> NodeDescription:
    """A node whose kubelet would start with its configuration."""
    numa = kinds.numa or random.choice(OFTEN)
    sockets = random.choice(SOCKETS.get(numa, (1,)))
    threads = random.choice((1, 2, 2))
    cores = random.randint(2, MOST_CORES.get(numa, 4))
    near, far = random.choice(NEAR_FAR)
    gpus = [random.randrange(numa) for _ in range(random.choice((0, 0, 1, 2, 3, 4)))]
    shape = Shape(
        sockets,
        numa // sockets,
        cores,
        threads,
        random.choice((8, 16, 16, 24)) * GIB,
        random.choice(list(Numbering)),
        devices={GPU: tuple(gpus)} if gpus else {},
        pages={"1Gi": random.choice((1, 2, 4))} if random.random() < 0.25 else {},
        costs=(10, near, far),
    )
    hardware = shape.build()
    hardware = replace(hardware, machine=_with_caches(random, hardware.machine, cores))
    policy = random.choice(kinds.policies)
    cpus = len(hardware.machine.cpus)
    reserved = CpuSet.of(random.choice(((0,), (0, 1), (0, cpus // 2), random.sample(range(cpus), 2), range(threads))))
    config = KubeletConfig(
        topology_policy=policy,
        topology_scope=random.choice(kinds.scopes),
        topology_options={"prefer-closest-numa-nodes": True} if random.random() < 0.25 else {},
        cpu_policy="static" if kinds.demanded else random.choice(("static",) * 7 + ("none",)),
        cpu_options=_options(random, kinds, policy),
        memory_policy=random.choice(("None", "Static")),
        reserved_cpus=reserved,
    )
    if config.cpu_policy == "none":
        config = replace(config, cpu_options={})
    return NodeDescription(
        name="n",
        hardware=hardware,
        style=Style.KUBELET,
        kubelet=config,
        reserved=reserved,
        reserved_memory=random.choice((0, GIB >> 2, GIB)),
        hidden=not kinds.published.drawn(random, 0.5),
    )


def _options(random: Random, kinds: Kinds, policy: KubeletPolicy) -> dict[str, bool]:
    chances = random.choice((0.0, 0.15, 0.4))
    found = {name for name in kinds.options if random.random() < chances}.union(kinds.demanded)
    for one, other in CLASHING:
        if one in found and other in found:
            found.discard(one if one not in kinds.demanded else other)
    if policy is KubeletPolicy.SINGLE_NUMA_NODE:
        found.discard("align-by-socket")  # such a kubelet does not start (ValidateStaticPolicyOptions)
    return dict.fromkeys(sorted(found), True)


def _with_caches(random: Random, machine: CpuTopology, cores: int) -> CpuTopology:
    """The machine with uncore caches of so many cores inside each NUMA node, or one for a socket."""
    size = random.choice((0, 0, 1, 2, 3, cores))
    if not size:
        return machine
    places: dict[int, tuple[int, int]] = {}
    seen: dict[int, int] = {}
    for cpu in machine.cpus:
        if cpu.core not in places:
            place = seen.get(cpu.numa, 0)
            seen[cpu.numa] = place + 1
            places[cpu.core] = (cpu.numa, place // size)
    ids = {place: number for number, place in enumerate(sorted(set(places.values())))}
    return replace(machine, cpus=tuple(replace(cpu, uncore=ids[places[cpu.core]]) for cpu in machine.cpus))
