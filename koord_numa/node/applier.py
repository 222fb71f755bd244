"""
Applying decided cpusets, for nodes where neither a static kubelet nor koordlet does.

Theory: level-based. ``wanted`` says which CPUs every running container is to have; whatever differs from that is changed, pinned
containers first. Nothing is remembered that could be wrong after a restart of the agent, of a container, of the kubelet or of the
runtime: what a container has is read from its cgroup. So a crash at any point leaves containers running where they were, and the next
round completes the work.

Rules, as koordlet's cpuset rule (``pkg/koordlet/runtimehooks/hooks/cpuset/rule.go``): a decided cpuset is applied as it is; pods that
share get the shared pool, on the NUMA nodes that were chosen for them if some were; pods of the kubelet's class BestEffort stay away
from LSE pods only.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.resources import CPU
from koord_numa.node.decided import DecidedPod
from koord_numa.node.inputs.cgroups import CgroupError, Cgroups
from koord_numa.node.inputs.kubelet_config import KubeletOptions
from koord_numa.node.inputs.rpc import RpcError, RunningContainer
from koord_numa.node.sysfs import Host

BEST_EFFORT: Final = "BestEffort"
"""The QoS class that the kubelet gives to pods without requests, those of Koordinator's batch resources among them."""


class Runtime(Protocol):
    """Who sets a container's cpuset: the container runtime, or the cgroup tree itself."""

    async def update(self, container: str, cpus: CpuSet, mems: str = "") -> None:
        """Give a running container these CPUs. Raises ``RpcError`` or ``CgroupError``."""


class CgroupRuntime:
    """Direct writes, for runtimes without CRI. A runtime that updates the container for another reason undoes them until the next round."""

    def __init__(self, cgroups: Cgroups) -> None:
        self._cgroups = cgroups

    async def update(self, container: str, cpus: CpuSet, mems: str = "") -> None:
        """Write the cgroup's files."""
        self._cgroups.write(container, cpus, mems)


@dataclass(frozen=True, slots=True)
class Target:
    """What one container is to have; ``mems`` empty leaves its memory alone. ``pinned`` containers come first."""

    container: str
    cpus: CpuSet
    mems: str = ""
    pinned: bool = False


@dataclass(frozen=True, slots=True)
class Round:
    """What one round has done: containers updated, what went wrong by container id, and containers whose cgroup is not found."""

    updated: frozenset[str] = frozenset()
    errors: Mapping[str, str] = field(default_factory=dict)
    missing: frozenset[str] = frozenset()


# The order is that of the answers' weight: an owner that is not known must count as one that owns.
def refusal(kubelet: KubeletOptions | None, *, koordlet: bool, mems: bool) -> str:
    """Why this node's cpusets are not ours to apply; empty when they are."""
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
    """CPUs and memory for the containers of any pod of the node: its decided CPUs, or the pool that it shares."""

    def __init__(self, host: Host, pods: Sequence[DecidedPod], *, reserved: CpuSet = EMPTY, mems: bool = False) -> None:
        self._host = host
        self._mems = mems
        self._every = every = host.cpu_set
        # Pods that are yet to start count as well: a pool with their CPUs would have to give them back at once.
        held = CpuSet.of(cpu for pod in pods for cpu in pod.cpus)
        closed = CpuSet.of(cpu for pod in pods if pod.exclusive_to_best_effort for cpu in pod.cpus)
        # A pool that is empty would stop its containers: where everything is pinned, the rest shares the reserved CPUs, or all.
        self._shared = (every - held - reserved) or (every - held) or (every & reserved) or every
        self._best_effort = (every - closed - reserved) or self._shared
        # NUMA nodes without memory are left out: the kernel refuses them in cpuset.mems.
        self._everything = str(CpuSet.of(numa.id for numa in host.numa if numa.memory))

    def target(self, pod: DecidedPod, container: str) -> Target | None:
        """Return what a container of the pod is to have, ``None`` if it must be left alone."""
        # By the kubelet's class: a label that authors of pods write freely gives no CPUs that others hold.
        pool = self._best_effort if pod.kube_qos == BEST_EFFORT else self._shared
        cpus = pod.cpus & self._every if pod.cpus else _near(self._host, pod, pool)
        # A pod whose annotation cannot be read is left alone: the pool could contain CPUs that were decided for it.
        if not cpus or pod.problem:
            return None
        memory = (str(CpuSet.of(pod.numa)) if pod.cpus and pod.numa else self._everything) if self._mems else ""
        return Target(container, cpus, memory, pinned=bool(pod.cpus))


def wanted(host: Host, pods: Sequence[DecidedPod], *, reserved: CpuSet = EMPTY, mems: bool = False) -> list[Target]:
    """The targets of all running containers of these pods, pinned ones first."""
    pools = Pools(host, pods, reserved=reserved, mems=mems)
    targets = [
        pools.target(pod, container.id)
        for pod in pods
        for container in pod.containers
        if container.running and container.id
    ]
    # Pinned ones first: a round that is cut short has done the part that promises depend on.
    return sorted(
        (target for target in targets if target is not None), key=lambda target: (not target.pinned, target.container)
    )


def unpinned(host: Host, running: Iterable[RunningContainer]) -> list[Target]:
    """The targets that hand everything back: all CPUs and all memory for every container of Kubernetes."""
    everything = str(CpuSet.of(numa.id for numa in host.numa if numa.memory))
    # Containers outside Kubernetes were never touched, so there is nothing to hand back.
    return [Target(one.id, host.cpu_set, everything) for one in running if one.pod_uid]


async def apply(targets: Sequence[Target], cgroups: Cgroups, runtime: Runtime) -> Round:
    """Change every container whose effective CPUs (or memory) are not the wanted ones. One that fails does not stop the others."""
    cgroups.locate(target.container for target in targets)
    updated, errors, missing = set(), {}, set()
    for target in targets:
        try:
            # Effective, not configured: the configured set may be right while a parent cgroup or a CPU that is offline narrows
            # it.
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
    """The part of a pool on the NUMA nodes where CPU was allocated to a pod, all of it when none was or nothing is left there."""
    chosen = [numa for numa, amounts in pod.amounts.items() if amounts.get(CPU)]
    if not chosen:
        return pool
    # `or pool`: the NUMA nodes may be full of bound pods, and an empty cpuset cannot be written.
    return CpuSet.of(cpu for numa in chosen for cpu in host.cpus_of(numa)) & pool or pool
