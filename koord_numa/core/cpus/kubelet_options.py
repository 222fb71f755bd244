"""
Options of the kubelet's resource managers: their names, the version that is modelled, options that an operator states where none are
published, and the evidence about ``full-pcpus-only``.

Names are those of ``cpuManagerPolicyOptions`` (cpumanager/policy_options.go) and ``topologyManagerPolicyOptions``
(topologymanager/policy_options.go).
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from math import gcd
from re import search
from typing import Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.objects.node import KubeletConfig, NodeResourceTopology, Zone
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.value_objects import ValueObject, replace, value_field

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
        OVER_NUMA,
        FULL_CORES,
        BY_CACHE,
        "strict-cpu-reservation",
    }
)

TOPOLOGY_OPTIONS: Final = frozenset({"max-allowable-numa-nodes", CLOSEST_NUMA})

ORDER_OPTIONS: Final = frozenset({"numa-allocation-strategy", "numa-score-weights"})
"""Topology manager options (KEP-6007) that choose among equally good hints. A unit is admitted with them exactly as without them."""

MODELLED: Final = (1, 36)
"""The latest minor version of the kubelet whose managers ``core/kubelet`` follows."""

CHOOSES_OTHERWISE: Final = {"distribute-cpus-across-cores": (1, 38), "distribute-cpus-across-numa": (1, 38)}
"""
CPU manager options by the minor version since which they choose other CPUs (kubernetes#139456, #140766, #141238).

The CPUs of a pod are known there when the kubelet's state shows them, and not before.
"""

ARCHITECTURE: Final = "kubernetes.io/arch"
"""The well-known label that every kubelet sets on its Node."""

THREADS: Final = "threads per core"
"""The unknown that a pod explores if its CPUs are no multiple of the likely threads per core and full-pcpus-only is known to be on."""

LIKELY_THREADS: Final = {"amd64": (2,), "arm64": (2,), "s390x": (2,), "riscv64": (2,)}
"""Threads per core by architecture, where a core has more than one."""

_ANY_THREADS: Final = (8, 4, 2)


_VERSION: Final = r"(?:^| )v(\d{1,3})\.(\d{1,3})[^ ]*$"


# Cached, because a cluster has few versions and every change of a node calls this function.
@lru_cache(maxsize=1024)
def newer_version(kubelet: str) -> str:
    """Return the version in ``Node.kubelet`` (``<boot> v1.37.1``) if it is newer than the model, else an empty string."""
    version = search(_VERSION, kubelet)
    return version[0].strip() if version and (int(version[1]), int(version[2])) > MODELLED else ""


def chooses_otherwise(kubelet: str, options: Mapping[str, bool]) -> bool:
    """Return whether this version of the kubelet chooses CPUs by an option in another way than the model."""
    since = [first for name, first in CHOOSES_OTHERWISE.items() if options.get(name, False)]
    version = search(_VERSION, kubelet) if since else None
    return version is not None and (int(version[1]), int(version[2])) >= min(since)


def unknown_options(published: Mapping[str, bool], known: Iterable[str]) -> tuple[str, ...]:
    """Return the names of options that are on and not among the known ones. Unknown options that are off change nothing."""
    if not published:
        return ()
    return tuple(sorted(name for name, is_on in published.items() if is_on and name not in known))


class StaticOptions(ValueObject):
    """The options of the static CPU manager policy (``cpuManagerPolicyOptions``). All are off by default."""

    full_pcpus_only: bool = False
    distribute_across_numa: bool = False
    distribute_across_cores: bool = False
    prefer_align_uncore: bool = False
    align_by_socket: bool = False

    @classmethod
    def of(cls, options: Mapping[str, bool]) -> "StaticOptions":
        """Read the kubelet's option names. Unknown names are ignored."""
        return cls(
            full_pcpus_only=options.get(FULL_CORES, False),
            distribute_across_numa=options.get(OVER_NUMA, False),
            distribute_across_cores=options.get("distribute-cpus-across-cores", False),
            prefer_align_uncore=options.get(BY_CACHE, False),
            align_by_socket=options.get("align-by-socket", False),
        )

    def group(self, machine: CpuTopology) -> int:
        """Return how many CPUs are distributed together: a whole core under full-pcpus-only, else one CPU."""
        # A machine with unknown core sizes reports 0 threads per core.
        return max(1, machine.threads_per_core) if self.full_pcpus_only else 1


class StatedOptions(ValueObject):
    """
    Kubelet options that an operator states for the nodes with all of ``labels``; empty ``labels`` select every node.

    ``cpu_options`` are the kubelet's ``cpuManagerPolicyOptions``, ``topology_options`` its ``topologyManagerPolicyOptions``. Options
    that are not named are off.
    """

    labels: Mapping[str, str] = value_field(default_factory=dict)
    cpu_options: Mapping[str, bool] = value_field(default_factory=dict)
    topology_options: Mapping[str, bool] = value_field(default_factory=dict)

    def selects(self, labels: Mapping[str, str]) -> bool:
        """Return whether a node with these labels is selected."""
        return all(labels.get(key) == value for key, value in self.labels.items())


def with_stated_options(
    topology: NodeResourceTopology, labels: Mapping[str, str], statements: Sequence[StatedOptions]
) -> NodeResourceTopology:
    """
    Return the topology of a kubelet-owned node with the options of the first statement that selects the node.

    Published options take precedence over stated ones. A rejection by the kubelet that contradicts a statement takes precedence as well
    (``core/kubelet/prediction.py``).
    """
    config = topology.kubelet
    # A publisher that knows the CPU manager policy knows its options too.
    if topology.owner is not CpuOwner.KUBELET or topology.problem or config.cpu_policy is not None:
        return topology
    for statement in statements:
        if statement.selects(labels):
            stated = replace(
                likely_config(topology),
                cpu_options=dict(statement.cpu_options),
                topology_options={**statement.topology_options, **config.topology_options},
            )
            return replace(topology, kubelet=stated)
    return topology


def likely_config(topology: NodeResourceTopology) -> KubeletConfig:
    """Return the published configuration. An unpublished CPU manager is taken to be static if a zone lists CPUs."""
    config = topology.kubelet
    if config.cpu_policy:
        return config
    lists_cpus = any(zone.allocatable.get(CPU) for zone in topology.zones)
    return replace(config, cpu_policy=STATIC_CPUS if lists_cpus else "none")


class WholeCores(ValueObject, gc=False):
    """
    The requirement that full-pcpus-only may impose: the exclusive CPUs of every container are a multiple of ``threads``, and those of all
    containers of a pod together are at most ``free``.

    Init containers count in full, because the kubelet's check gives no credit for CPUs that an init container leaves. ``free`` is ``None``
    where nothing is required. ``why`` names the assumption. ``option`` names the unknown that a pod against the requirement would explore;
    it is empty where the kubelet would only reject the pod.
    """

    threads: int = 1
    free: int | None = None
    why: str = ""
    option: str = ""


NO_RULE: Final = WholeCores()


class CoreEvidence(ValueObject, gc=False):
    """
    Evidence about ``full-pcpus-only``: the exclusive CPU counts of containers that the kubelet has admitted, and whether it has rejected a
    pod with SMTAlignmentError (``kept``). ``settled``: every bound pod is on the NUMA nodes that were predicted.
    """

    counts: Collection[int] = ()
    kept: bool = False
    settled: bool = True


class FreeCpus(ValueObject, gc=False):
    """
    Free exclusive CPUs of one state by zone. ``located`` is false if only their sum is known. ``coming`` CPUs of these are
    taken by pods in flight, on unknown zones.
    """

    by_zone: tuple[int, ...]
    located: bool = True
    coming: int = 0

    @staticmethod
    def of(zones: Iterable[Zone], coming: int = 0) -> "FreeCpus":
        """Return the available CPUs of zones."""
        return FreeCpus(tuple([zone.available.get(CPU, 0) // MILLI for zone in zones]), coming=coming)


class CoreRule(ValueObject, gc=False):
    """
    The part of ``WholeCores`` that does not depend on free CPUs. ``spoiled`` is, by zone, how many CPUs may share a core with a reserved
    CPU.
    """

    threads: int
    spoiled: tuple[int, ...]
    why: str
    option: str


def core_rule(
    config: KubeletConfig, zones: Sequence[Zone], architecture: str, evidence: CoreEvidence
) -> CoreRule | None:
    """
    Return the strictest rule that the facts allow, or ``None`` where nothing is required.

    A running container whose CPU count is no multiple of a number of threads disproves this number, or the option. A NUMA node with such
    a number of CPUs does so too.
    """
    # A rejection is stronger evidence than a configuration that does not list the option.
    if config.cpu_policy is not None and not config.cpu_options.get(FULL_CORES, False) and not evidence.kept:
        return None
    # The largest number of threads per core of the architecture that divides all counts and NUMA node sizes.
    divisor = gcd(*evidence.counts, *[zone.capacity.get(CPU, 0) // MILLI for zone in zones])
    # Without counts and sizes the divisor is 0, which every number divides.
    threads = next((threads for threads in LIKELY_THREADS.get(architecture, _ANY_THREADS) if not divisor % threads), 1)
    # A reserved CPU spoils its core. Which core it is on is not published.
    spoiled = [(zone.capacity.get(CPU, 0) - zone.allocatable.get(CPU, 0)) // MILLI * (threads - 1) for zone in zones]
    published = config.cpu_policy is not None
    option = "" if evidence.kept else THREADS if published else FULL_CORES
    return CoreRule(threads, tuple(spoiled), _why(threads, published=published, kept=evidence.kept), option)


def surely_whole(rule: CoreRule | None, states: Iterable[FreeCpus]) -> WholeCores:
    """Return the requirement of a rule and a lower bound of the free CPUs on whole cores in these candidate states of the kubelet."""
    if rule is None:
        return NO_RULE
    free = min([_surely_whole(state, rule) for state in states])
    return WholeCores(rule.threads, free, rule.why, rule.option)


def _surely_whole(state: FreeCpus, rule: CoreRule) -> int:
    """Return a lower bound of the free CPUs on cores without a reserved CPU. A zone loses at most the CPUs that it has free."""
    if not state.located:
        return max(0, sum(state.by_zone) - sum(rule.spoiled))
    whole = sum([max(0, free - lost) for free, lost in zip(state.by_zone, rule.spoiled, strict=True)])
    return max(0, whole - state.coming)


@lru_cache(maxsize=32)
def _why(threads: int, *, published: bool, kept: bool) -> str:
    known = "CPU manager options are not published"
    if published or kept:
        known = "full-pcpus-only is on" if published else "its kubelet refused a pod for its whole cores"
    cores = f"whole cores of {threads} threads" if threads > 1 else "whole cores"
    return f"{known}: CPUs are taken to be {cores}"
