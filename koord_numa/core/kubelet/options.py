"""
One kubelet-owned node in full: its CPUs, memory and devices per NUMA node, and how its kubelet's managers are configured.

Facts only; nothing here changes when pods come and go.

The options of the kubelet's resource managers up to Kubernetes 1.36, and which of those that are published decide in unknown ways.

Names are those of ``cpuManagerPolicyOptions`` (cpumanager/policy_options.go) and ``topologyManagerPolicyOptions``
(topologymanager/policy_options.go).

The options of the kubelet's static CPU manager policy that change which CPUs it hands out.

What the published objects say about one kubelet's node, whatever is free there: its machine, its managers, what each NUMA node has.

Worked out once for a node and its topology; ``inferred_state.py`` fills in what is free. CPU ids are made up: only counts are known.

Kubelet options that an operator states for the nodes of a selector, where exporters publish none.

A statement stands in for what is not published and never for what is. A kubelet's answer that contradicts it counts for more: the node
is then treated by what its kubelet has shown (``exploration.py``).

How careful a scheduler must be about whole physical cores on a node whose kubelet options or threads per core are not published.

With full-pcpus-only the kubelet refuses CPU counts that are no multiple of the threads per core, and counts beyond the free whole cores.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from math import gcd
from re import search
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.value_objects import ValueObject, replace

STATIC_CPUS: Final = "static"


STATIC_MEMORY: Final = "Static"


FULL_CORES: Final = "full-pcpus-only"


OVER_NUMA: Final = "distribute-cpus-across-numa"


BY_CACHE: Final = "prefer-align-cpus-by-uncorecache"


CLOSEST_NUMA: Final = "prefer-closest-numa-nodes"


CPU_OPTIONS: Final = frozenset(
    {
        "align-by-socket",
        "distribute-cpus-across-cores",
        "distribute-cpus-across-numa",
        "full-pcpus-only",
        "prefer-align-cpus-by-uncorecache",
        "strict-cpu-reservation",
    }
)


TOPOLOGY_OPTIONS: Final = frozenset({"max-allowable-numa-nodes", "prefer-closest-numa-nodes"})


MODELLED: Final = (1, 36)
"""The latest minor version of the kubelet whose managers ``core/kubelet`` follows."""


# A cluster has few versions, and each change of a node asks again.
@lru_cache(maxsize=1024)
def newer_version(kubelet: str) -> str:
    """The version in ``Node.kubelet`` (``<boot> v1.37.1``) where it is newer than what is modelled, else nothing."""
    found = search(r"(?:^| )v(\d{1,3})\.(\d{1,3})[^ ]*$", kubelet)
    return found[0].strip() if found and (int(found[1]), int(found[2])) > MODELLED else ""


def unknown_options(published: Mapping[str, bool], known: Iterable[str]) -> tuple[str, ...]:
    """Names of options that are on and that are none of the known ones: what they change is unknown here."""
    if not published:
        return ()
    # Only options that are on: an unknown one that is off changes nothing.
    return tuple(sorted(name for name, value in published.items() if value and name not in known))


@dataclass(frozen=True, slots=True)
class StaticOptions:
    """The kubelet's ``cpuManagerPolicyOptions`` by what they do; all off is its default."""

    full_pcpus_only: bool = False
    distribute_across_numa: bool = False
    distribute_across_cores: bool = False
    prefer_align_uncore: bool = False
    align_by_socket: bool = False
    strict_reservation: bool = False

    @classmethod
    def of(cls, options: Mapping[str, bool]) -> "StaticOptions":
        """From the kubelet's option names; names it does not know change nothing here."""
        return cls(
            full_pcpus_only=options.get("full-pcpus-only", False),
            distribute_across_numa=options.get("distribute-cpus-across-numa", False),
            distribute_across_cores=options.get("distribute-cpus-across-cores", False),
            prefer_align_uncore=options.get("prefer-align-cpus-by-uncorecache", False),
            align_by_socket=options.get("align-by-socket", False),
            strict_reservation=options.get("strict-cpu-reservation", False),
        )

    def group(self, machine: CpuTopology) -> int:
        """How many CPUs belong together when they are distributed: whole cores under full-pcpus-only, else single CPUs."""
        # Unknown core sizes are reported as 0; a group has at least one CPU.
        return max(1, machine.threads_per_core) if self.full_pcpus_only else 1


def likely_config(topology: NodeResourceTopology) -> KubeletConfig:
    """The published settings; where the CPU manager is not published, zones that list CPUs tell that it is the static one."""
    config = topology.kubelet
    if config.cpu_policy:
        return config
    static = any(zone.allocatable.get(CPU) for zone in topology.zones)
    return replace(config, cpu_policy=STATIC_CPUS if static else "none")


@dataclass(frozen=True, slots=True)
class StatedOptions:
    """
    One statement. ``labels`` are those that a node must have, all of them; none at all select every node.

    ``cpu_options`` and ``topology_options`` are the kubelet's ``cpuManagerPolicyOptions`` and ``topologyManagerPolicyOptions``; options
    that are not named are off.
    """

    labels: Mapping[str, str] = field(default_factory=dict)
    cpu_options: Mapping[str, bool] = field(default_factory=dict)
    topology_options: Mapping[str, bool] = field(default_factory=dict)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Is the statement about a node with these labels?"""
        return all(labels.get(key) == value for key, value in self.labels.items())


def with_stated_options(
    topology: NodeResourceTopology, labels: Mapping[str, str], statements: Sequence[StatedOptions]
) -> NodeResourceTopology:
    """The topology of a kubelet-owned node with the options of the first statement about it filled in where none are published."""
    config = topology.kubelet
    # A published CPU manager policy comes with its options: there is nothing left to state.
    if topology.owner is not CpuOwner.KUBELET or topology.problem or config.cpu_policy is not None:
        return topology
    # The first match wins, as rules of a list are read; later ones are not merged in.
    for one in statements:
        if one.selects(labels):
            known = replace(
                likely_config(topology),
                cpu_options=dict(one.cpu_options),
                # What is published replaces what is stated, option by option.
                topology_options={**one.topology_options, **config.topology_options},
            )
            return replace(topology, kubelet=known)
    return topology


ARCHITECTURE: Final = "kubernetes.io/arch"
"""The well-known label of every Node that its kubelet sets."""


THREADS: Final = "threads per core"
"""What a pod explores whose CPUs are no multiple of the likely threads per core, where full-pcpus-only is known to be on."""


LIKELY_THREADS: Final = {"amd64": (2,), "arm64": (2,), "s390x": (2,), "riscv64": (2,)}
"""Of a core, by architecture."""


_ANY_THREADS: Final = (8, 4, 2)


class WholeCores(ValueObject, gc=False):
    """
    The rule to be kept: every container's exclusive CPUs are a multiple of ``threads``, and all of a pod's together are at most ``free``.

    All together, init containers included: the kubelet's check gives no credit for CPUs that an init container leaves. ``free`` is ``None``
    when nothing has to be kept. ``why`` says which assumption this rests on. ``option`` names what a pod that breaks the rule
    would explore, empty where it would only be refused.
    """

    threads: int = 1
    free: int | None = None
    why: str = ""
    option: str = ""


NO_RULE: Final = WholeCores()


class CoreEvidence(ValueObject, gc=False):
    """
    What is known of ``full-pcpus-only``: exclusive CPU counts of containers that this kubelet has admitted, and whether it refused a pod
    for its whole cores (SMTAlignmentError). ``settled``: no pod is on its way that may be on another NUMA node than is foreseen.
    """

    counts: Collection[int] = ()
    kept: bool = False
    settled: bool = True


class FreeCpus(ValueObject, gc=False):
    """The exclusive CPUs that are free in one state, zone by zone; ``located``: on just these NUMA nodes, else only their sum is known."""

    by_zone: tuple[int, ...]
    located: bool = True


class CoreRule(ValueObject, gc=False):
    """
    What there is to keep of whole cores whatever is free: multiples of ``threads``. ``spoiled`` is, by zone, how many CPUs may share a core
    with a reserved one.
    """

    threads: int
    spoiled: tuple[int, ...]
    why: str
    option: str


def whole_cores(
    config: KubeletConfig,
    zones: Sequence[Zone],
    architecture: str,
    evidence: CoreEvidence,
    states: Iterable[FreeCpus] = (),
) -> WholeCores:
    """
    The most careful rule that the facts allow.

    A count of CPUs that runs and is no multiple of some number of threads proves that this number, or the option, is not in force. So does
    a NUMA node with such a number of CPUs. ``states`` are those that the kubelet may be in; without any, what the zones say is free.
    """
    return surely_whole(core_rule(config, zones, architecture, evidence), zones, states)


def core_rule(
    config: KubeletConfig, zones: Sequence[Zone], architecture: str, evidence: CoreEvidence
) -> CoreRule | None:
    """The part of ``whole_cores`` that does not depend on what is free; ``None`` where nothing has to be kept."""
    kept = evidence.kept
    # Evidence of a refusal outranks a configuration that does not list the option.
    if not may_be_kept(config) and not kept:
        return None
    threads = likely_threads(zones, architecture, evidence.counts)
    # A reserved CPU spoils the core it is on, and which one that is is not published.
    spoiled = [(zone.capacity.get(CPU, 0) - zone.allocatable.get(CPU, 0)) // MILLI * (threads - 1) for zone in zones]
    published = config.cpu_policy is not None
    # What would be explored: the option where nothing is published, the number of threads where the option is.
    option = "" if kept else THREADS if published else FULL_CORES
    return CoreRule(threads, tuple(spoiled), _why(threads, published=published, kept=kept), option)


def surely_whole(rule: CoreRule | None, zones: Sequence[Zone], states: Iterable[FreeCpus] = ()) -> WholeCores:
    """As ``whole_cores``, by a rule that is known."""
    if rule is None:
        return NO_RULE
    found = (*states,)
    if found:
        surely = min([_surely_whole(state, rule.spoiled) for state in found])
    else:
        surely = 0
        for zone, lost in zip(zones, rule.spoiled, strict=True):
            surely += max(0, zone.available.get(CPU, 0) // MILLI - lost)
    return WholeCores(rule.threads, surely, rule.why, rule.option)


def _surely_whole(state: FreeCpus, spoiled: Sequence[int]) -> int:
    """
    How many CPUs are free on cores without a reserved CPU, at least, where so many of each zone may share a core with one.

    Of those that are in use no free one is lost: a zone loses no more than it has free.
    """
    if not state.located:
        return max(0, sum(state.by_zone) - sum(spoiled))
    return sum([max(0, free - lost) for free, lost in zip(state.by_zone, spoiled, strict=True)])


def may_be_kept(config: KubeletConfig) -> bool:
    """May full-pcpus-only be on?"""
    return config.cpu_policy is None or config.cpu_options.get(FULL_CORES, False)


def likely_threads(zones: Sequence[Zone], architecture: str, seen: Iterable[int]) -> int:
    """The most threads per core of this architecture that nothing which was seen disproves."""
    # Counts that were admitted and sizes of NUMA nodes are all multiples of the threads, so their greatest common divisor bounds
    # them.
    divisor = gcd(*seen, *[zone.capacity.get(CPU, 0) // MILLI for zone in zones])
    # 0 is a multiple of everything: without any evidence the most threads of the architecture are assumed.
    return next((number for number in LIKELY_THREADS.get(architecture, _ANY_THREADS) if not divisor % number), 1)


@lru_cache(maxsize=32)
def _why(threads: int, *, published: bool, kept: bool) -> str:
    known = "CPU manager options are not published"
    if published or kept:
        known = "full-pcpus-only is on" if published else "its kubelet refused a pod for its whole cores"
    cores = f"whole cores of {threads} threads" if threads > 1 else "whole cores"
    return f"{known}: CPUs are taken to be {cores}"
