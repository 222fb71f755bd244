"""
How careful a scheduler must be about whole physical cores on a node whose kubelet options or threads per core are not published.

With full-pcpus-only the kubelet refuses CPU counts that are no multiple of the threads per core, and counts beyond the free whole cores.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import lru_cache
from math import gcd
from typing import Final

from koord_numa.core.kubelet.managers.kubelet_node import FULL_CORES
from koord_numa.core.objects.node import KubeletConfig, Zone
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.value_objects import ValueObject

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
