"""
Apply allocated cpusets on nodes where neither a static CPU manager nor koordlet does.

Level-based: ``wanted`` returns the CPUs of every running container, and every difference is corrected, pinned
containers first. The current CPUs are read from the cgroup, so nothing is lost in a restart of the agent, a container,
the kubelet or the runtime.

Rules of koordlet's cpuset rule (``pkg/koordlet/runtimehooks/hooks/cpuset/rule.go``): an allocated cpuset is applied
unchanged. Other pods get the shared pool, on their allocated NUMA nodes if any. Pods of the kubelet's class BestEffort
avoid only the CPUs of LSE pods.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import CpuIsolation
from koord_numa.core.resources import CPU
from koord_numa.node.kubelet_files import KubeletOptions
from koord_numa.node.observer import CgroupError, Cgroups
from koord_numa.node.podresources import RpcError, RunningContainer
from koord_numa.node.pods import DecidedPod
from koord_numa.node.sysfs import Host

# What pods request beyond exclusive CPUs: no interrupts on these CPUs, and empty sibling threads.
#
# A pod requests it by annotation, a Node by label for all pods with a cpuset. This module decides and has no effects:
# ``applier.py`` leaves siblings out of the shared pools, and ``interrupts.py`` moves interrupts.

_WORDS = frozenset(word.value for word in CpuIsolation)


@dataclass(frozen=True, slots=True)
class IsolationPlan:
    """
    The isolation of a node.

    ``quiet`` are the CPUs without interrupts, ``empty`` the sibling threads that no container may use. ``steered`` are
    the UIDs of the pods that requested quiet CPUs. ``refusals`` are the reasons, by UID, why a request is not honored.
    """

    quiet: CpuSet = EMPTY
    empty: CpuSet = EMPTY
    steered: tuple[str, ...] = ()
    refusals: Mapping[str, str] = field(default_factory=dict)


def isolation_plan(host: Host, pods: Iterable[DecidedPod], of_node: frozenset[str] = frozenset()) -> IsolationPlan:
    """Return the isolation that the pods request. ``of_node`` are the words of the Node's label."""
    pods = tuple(pods)
    requested = [(pod, words) for pod in pods if (words := _requested(pod, of_node))]
    if not requested:
        return IsolationPlan()
    holders = {cpu: pod for pod in pods for cpu in pod.cpus}
    held, cores = CpuSet.of(holders), host.cores()
    quiet, empty, steered, refusals = EMPTY, EMPTY, [], {}
    for pod, words in requested:
        reasons = []
        if unknown := sorted(words - _WORDS):
            reasons.append(f"{', '.join(unknown)[:100]} is none of {', '.join(sorted(_WORDS))}")
        if not pod.cpus:
            reasons.append("the pod has no exclusive CPUs")
        siblings = EMPTY
        for cpu in pod.cpus if CpuIsolation.SIBLINGS in words else ():
            siblings |= cores.get(cpu, EMPTY)
        siblings -= pod.cpus
        if taken := siblings & held:
            others = sorted({holders[cpu].key for cpu in taken})
            reasons.append(f"sibling threads {taken} of its CPUs are held by {', '.join(others[:3])}")
        empty |= siblings - held
        if CpuIsolation.INTERRUPTS in words and pod.cpus:
            quiet |= pod.cpus | siblings - held
            steered.append(pod.uid)
        if reasons:
            refusals[pod.uid] = "; ".join(reasons)
    return IsolationPlan(quiet & host.cpu_set, empty, tuple(steered), refusals)


def refused_plan(pods: Iterable[DecidedPod], of_node: frozenset[str], why: str) -> IsolationPlan:
    """Return the plan of a node where nothing may be isolated, for one reason."""
    return IsolationPlan(refusals={pod.uid: why for pod in pods if _requested(pod, of_node)})


def _requested(pod: DecidedPod, of_node: frozenset[str]) -> frozenset[str]:
    """Return the words that apply to a pod. ``isolcpus`` alone needs no agent: the scheduler has chosen the CPUs."""
    words = pod.isolation | of_node if pod.cpus else pod.isolation
    return frozenset() if pod.problem or words <= {CpuIsolation.ISOLCPUS.value} else words


BEST_EFFORT: Final = "BestEffort"
"""The kubelet's QoS class of pods without requests, including those with Koordinator's batch resources."""


class CpusetSetter(Protocol):
    """The setter of a container's cpuset: the container runtime, or the cgroup tree."""

    async def update(self, container: str, cpus: CpuSet, mems: str = "") -> None:
        """Set the CPUs of a running container. Raises ``RpcError`` or ``CgroupError``."""


class CgroupRuntime:
    """Direct writes for runtimes without CRI. If the runtime overwrites a cpuset, the next round corrects it."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups

    async def update(self, container: str, cpus: CpuSet, mems: str = "") -> None:
        """Write the files of the cgroup."""
        self._cgroups.write(container, cpus, mems)


@dataclass(frozen=True, slots=True)
class ContainerTarget:
    """The wanted state of a container. Empty ``mems`` leaves its memory unchanged. ``pinned`` containers come first."""

    container: str
    cpus: CpuSet
    mems: str = ""
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """The result of a round: updated containers, errors by container id, and containers whose cgroup is not found."""

    updated: frozenset[str] = frozenset()
    errors: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()


# Ordered by priority of the reasons: an unknown owner counts as an owner.
def refusal(kubelet: KubeletOptions | None, *, koordlet: bool, mems: bool) -> str:
    """Return why this agent must not apply cpusets on the node, empty if it may."""
    if kubelet is None:
        return "the kubelet's configuration is not known, so its CPU manager may be static"
    if kubelet.cpu_policy != "none":
        return f"the kubelet's CPU manager policy is {kubelet.cpu_policy}: it owns the CPUs"
    if koordlet:
        return "koordlet runs on this node and applies cpusets itself"
    if mems and kubelet.memory_policy != "None":
        return f"the kubelet's memory manager policy is {kubelet.memory_policy}: it owns the memory"
    return ""


class Pools:
    """CPUs and memory for the containers of any pod of the node: its allocated CPUs, or the shared pool."""

    def __init__(
        self,
        host: Host,
        pods: Sequence[DecidedPod],
        *,
        reserved: CpuSet = EMPTY,
        mems: bool = False,
        isolation: frozenset[str] = frozenset(),
    ) -> None:
        self._host = host
        self._mems = mems
        self._every = every = host.cpu_set
        # Includes pods that have not started: otherwise, the pool would have to shrink when they start.
        held = CpuSet.of(cpu for pod in pods for cpu in pod.cpus)
        closed = CpuSet.of(cpu for pod in pods if pod.exclusive_to_best_effort for cpu in pod.cpus)
        # An empty pool would stop its containers: if all CPUs are pinned, the others share the reserved CPUs, or all
        # CPUs.
        empty = isolation_plan(host, pods, isolation).empty
        self._shared = (
            (every - held - empty - reserved)
            or (every - held - reserved)
            or (every - held)
            or (every & reserved)
            or every
        )
        self._best_effort = (every - closed - empty - reserved) or self._shared
        # NUMA nodes without memory are omitted: the kernel rejects them in cpuset.mems.
        self._everything = str(CpuSet.of(numa.id for numa in host.numa if numa.memory))

    def target(self, pod: DecidedPod, container: str) -> ContainerTarget | None:
        """Return the wanted state of a container of the pod, ``None`` if it must be left unchanged."""
        # By the kubelet's QoS class: any author of pods can set the label, which must not give access to CPUs of
        # others.
        pool = self._best_effort if pod.kube_qos == BEST_EFFORT else self._shared
        cpus = pod.cpus & self._every if pod.cpus else _near(self._host, pod, pool)
        # A pod with a malformed annotation is left unchanged: the pool could contain CPUs that were allocated to it.
        if not cpus or pod.problem:
            return None
        memory = (str(CpuSet.of(pod.numa)) if pod.cpus and pod.numa else self._everything) if self._mems else ""
        return ContainerTarget(container, cpus, memory, pinned=bool(pod.cpus))


def wanted(
    host: Host,
    pods: Sequence[DecidedPod],
    *,
    reserved: CpuSet = EMPTY,
    mems: bool = False,
    isolation: frozenset[str] = frozenset(),
) -> list[ContainerTarget]:
    """
    Return the wanted states of all running containers of these pods, pinned containers first.

    ``isolation`` are the words of the Node's label.
    """
    pools = Pools(host, pods, reserved=reserved, mems=mems, isolation=isolation)
    targets = [
        pools.target(pod, container.id)
        for pod in pods
        for container in pod.containers
        if container.running and container.id
    ]
    # Pinned containers first, in case that the round is interrupted.
    return sorted(
        (target for target in targets if target is not None), key=lambda target: (not target.pinned, target.container)
    )


def unpinned(host: Host, running: Iterable[RunningContainer]) -> list[ContainerTarget]:
    """Return the targets of a reset: all CPUs and all memory for every container of Kubernetes."""
    everything = str(CpuSet.of(numa.id for numa in host.numa if numa.memory))
    # The agent never changes containers outside Kubernetes.
    return [ContainerTarget(one.id, host.cpu_set, everything) for one in running if one.pod_uid]


async def apply(targets: Sequence[ContainerTarget], cgroups: Cgroups, runtime: CpusetSetter) -> Round:
    """Update every container whose effective CPUs (or memory) differ. A failure does not stop the others."""
    cgroups.locate(target.container for target in targets)
    updated, errors, missing = set(), {}, set()
    for target in targets:
        try:
            # Effective, not configured: a parent cgroup or an offline CPU may restrict a correct configuration.
            effective = cgroups.effective(target.container, mems=bool(target.mems))
            if effective is None:
                missing.add(target.container)
                continue
            if effective.cpus == target.cpus and (not target.mems or str(effective.mems) == target.mems):
                continue
            await runtime.update(target.container, target.cpus, target.mems)
            updated.add(target.container)
        except (RpcError, CgroupError) as error:
            errors[target.container] = str(error)
    return Round(frozenset(updated), errors, frozenset(missing))


def _near(host: Host, pod: DecidedPod, pool: CpuSet) -> CpuSet:
    """Return the part of a pool on the NUMA nodes with allocated CPU of a pod. The whole pool if there are none or it is empty."""
    chosen = [numa for numa, amounts in pod.amounts.items() if amounts.get(CPU)]
    if not chosen:
        return pool
    # `or pool`: the NUMA nodes may be full of pinned pods, and an empty cpuset cannot be written.
    return CpuSet.of(cpu for numa in chosen for cpu in host.cpus_of(numa)) & pool or pool
