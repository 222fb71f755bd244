"""
The exact state of the kubelet, from its checkpoint files, podresources and the pods of the API server.

Each source is wrong at times (observed on Kubernetes 1.36). The files keep finished pods until the next admission.
Podresources lists a pod without its CPUs for 20 to 40 ms at admission, and nothing for half a second after a restart of
the kubelet. Files and podresources change one after the other. A reading with a ``Contradiction`` is discarded and
repeated.
"""

from collections.abc import Iterable, Iterator, Mapping, Set
from dataclasses import dataclass

from koord_numa.core.cpuset import EMPTY, CpuSet, members
from koord_numa.core.objects.node import (
    ContainerState,
    CpuRow,
    HeldMemory,
    KubeletCheckpoint,
    MemoryAmounts,
    NumaMemory,
)
from koord_numa.core.value_objects import replace
from koord_numa.node.kubelet_files import STATIC_CPUS, STATIC_MEMORY, CpuFile, KubeletFiles, KubeletOptions, MemoryFile
from koord_numa.node.podresources import HeldResources, PodHoldings, PodResources
from koord_numa.node.pods import BoundPod
from koord_numa.node.sysfs import Host

NO_CPUS = CpuFile(policy="none")
NO_MEMORY = MemoryFile(policy="None")


class Contradiction(Exception):
    """Two sources disagree, or a source is inconsistent. The text names the pod or file."""


class UnallocatedPod(Contradiction):
    """A container is listed without the CPUs of a static CPU manager. Such a reading is never published."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """
    Evidence that managers are static, which overrides the configuration. ``cpus`` and ``memory`` are texts, empty for none.

    A kubelet takes policies from flags and drop-ins as well as from the file that the agent reads.
    """

    cpus: str = ""
    memory: str = ""


NO_EVIDENCE = Evidence()


def evidence_of(files: KubeletFiles | None, resources: PodResources | None, known: Evidence = NO_EVIDENCE) -> Evidence:
    """Return the evidence in files and podresources, in addition to ``known``."""
    cpus, memory = known.cpus, known.memory
    if files is not None:
        if not cpus and files.cpu is not None and files.cpu.policy == STATIC_CPUS:
            cpus = "its file cpu_manager_state has the policy static"
        if not memory and files.memory is not None and files.memory.policy == STATIC_MEMORY:
            memory = "its file memory_manager_state has the policy Static"
    for pod in () if resources is None or (cpus and memory) else resources.pods:
        for container in pod.containers:
            if not cpus and container.cpus:
                cpus = (
                    f"container {container.name} of pod {pod.namespace}/{pod.name} has exclusive CPUs {container.cpus}"
                )
            if not memory and container.memory:
                memory = f"container {container.name} of pod {pod.namespace}/{pod.name} has memory of NUMA nodes"
    return Evidence(cpus, memory)


def with_evidence(options: KubeletOptions | None, evidence: Evidence) -> KubeletOptions | None:
    """
    Return the options of the running kubelet: managers with evidence are static, whatever the configuration.

    A policy from a flag or drop-in means that the configuration is incomplete.
    """
    if options is None:
        return None
    if evidence.cpus and options.cpu_policy != STATIC_CPUS:
        # The none policy reserves no CPUs. Those of the static policy are the CPUs that are not allocatable.
        reserved = options.reserved_cpus or None
        options = replace(options, cpu_policy=STATIC_CPUS, reserved_cpus=reserved, is_complete=False)
    if evidence.memory and options.memory_policy != STATIC_MEMORY:
        absent = options.absent - {"memoryManagerPolicy"}
        options = replace(options, memory_policy=STATIC_MEMORY, absent=absent, is_complete=False)
    return options


def check_listing(resources: PodResources, pods: Iterable[BoundPod], *, static: bool) -> None:
    """
    Raise ``UnallocatedPod`` if a container that a static CPU manager pins is listed without CPUs.

    This state occurs briefly at every admission. The published amounts would offer the CPUs again.
    """
    if not static:
        return
    by_key = {pod.key: pod for pod in pods}
    for listed in resources.pods:
        pod = by_key.get(listed.key)
        for container in listed.containers if pod is not None and not pod.ended else ():
            if pod is not None and container.name in pod.pinned and not container.cpus:
                raise UnallocatedPod(
                    f"podresources lists container {container.name} of pod {pod.namespace}/{pod.name} without CPUs"
                )


def check_presence(
    resources: PodResources, files: KubeletFiles | None, pods: Iterable[BoundPod], *, restarted: bool
) -> None:
    """
    Raise ``Contradiction`` if a running pod is not listed, as after a restart of the kubelet.

    ``restarted``: the kubelet has just started, so a pod that is being deleted may be missing for the same reason.
    """
    listed = {pod.key for pod in resources.pods}
    uids = set() if files is None else files.uids
    for pod in pods:
        if pod.key in listed or pod.ended or (pod.deleting and listed and not restarted):
            continue
        if pod.started or pod.kubelet_uid in uids:
            raise Contradiction(f"podresources does not list pod {pod.namespace}/{pod.name}, which runs")


def hardware_state(
    host: Host, options: KubeletOptions | None, resources: PodResources | None, read_at: float
) -> KubeletCheckpoint:
    """Return the state without the files: the CPU table, reserved CPUs, policies and devices."""
    return KubeletCheckpoint(
        read_at=read_at,
        cpus=tuple(_cpu_rows(host)),
        reserved_cpus=reserved_cpus(host, options, resources).bits,
        cpu_policy=None if options is None else _known(options.cpu_policy, ("none", STATIC_CPUS)),
        memory_policy=_known(options.memory_policy, ("None", STATIC_MEMORY))
        if options is not None and options.states("memoryManagerPolicy")
        else None,
        cpu_options={name: value == "true" for name, value in options.cpu_options.items()}
        if options is not None and options.states("cpuManagerPolicyOptions")
        else None,
        device_numa={} if resources is None else _device_masks(resources),
        state_known=False,
    )


def exact_state(
    hardware: KubeletCheckpoint,
    files: KubeletFiles,
    resources: PodResources,
    pods: Iterable[BoundPod],
    departed: Iterable[str],
) -> KubeletCheckpoint:
    """
    Return the whole state at one time. Raises ``Contradiction``.

    A missing file holds nothing: the kubelet writes it when a manager has state to store. Resources of finished pods in
    the files are free in the result, because the kubelet releases them before its next allocation.
    """
    cpu, memory = files.cpu or NO_CPUS, files.memory or NO_MEMORY
    devices = files.devices or {}
    _check_cpu_file(cpu, hardware)
    _check_memory_file(memory)
    by_key = {pod.key: pod for pod in pods}
    active: set[str] = set()
    held: dict[str, dict[str, ContainerState]] = {}
    pod_level: dict[str, ContainerState] = {}
    for listed in resources.pods:
        pod = by_key.get(listed.key)
        if pod is None:
            raise Contradiction(
                f"podresources lists pod {listed.namespace}/{listed.name}, which the API server does not"
            )
        # Kubelets before 1.34 also list finished pods.
        if pod.ended:
            continue
        uid = pod.kubelet_uid
        active.add(pod.uid)
        cpus, blocks, ids = cpu.entries.get(uid, {}), memory.entries.get(uid, {}), devices.get(uid, {})
        blocks = {name: tuple([block for block in each if block.size]) for name, each in blocks.items()}
        _check_pod(listed, cpus, blocks, ids)
        containers = {
            name: ContainerState(
                cpus=cpus.get(name, EMPTY).bits,
                memory=blocks.get(name, ()),
                devices={resource: tuple(sorted(held)) for resource, held in sorted(ids.get(name, {}).items())},
            )
            for name in sorted({*cpus, *blocks, *ids})
        }
        # An init container whose memory was reused by the app container holds nothing.
        containers = {name: state for name, state in containers.items() if state != ContainerState()}
        if containers:
            held[pod.uid] = containers
        whole = ContainerState(cpus=cpu.pods.get(uid, EMPTY).bits, memory=memory.pods.get(uid, ()))
        if whole != ContainerState():
            pod_level[pod.uid] = whole
    names = {pod.kubelet_uid: pod.uid for pod in by_key.values()}
    running = {uid for uid, name in names.items() if name in active}
    stale = {names.get(uid, uid) for uid in files.uids}
    return replace(
        hardware,
        cpu_policy=STATIC_CPUS if cpu.policy == STATIC_CPUS else hardware.cpu_policy,
        memory_policy=STATIC_MEMORY if memory.policy == STATIC_MEMORY else hardware.memory_policy,
        default_cpus=(_shared_pool(cpu, running) if cpu.policy == STATIC_CPUS else _all_cpus(hardware)).bits,
        pods=held,
        pod_level=pod_level,
        active=frozenset(active),
        gone=frozenset((stale | set(departed)) - active),
        memory=_released(memory, running) if memory.policy == STATIC_MEMORY else {},
        state_known=True,
    )


def _shared_pool(cpu: CpuFile, running: Set[str]) -> CpuSet:
    """Return the shared pool after the release of finished pods (``removeStaleState`` in cpumanager/cpu_manager.go)."""
    held, stale = EMPTY, EMPTY
    for uid, containers in cpu.entries.items():
        for cpus in containers.values():
            held, stale = (held | cpus, stale) if uid in running else (held, stale | cpus)
    for uid, cpus in cpu.pods.items():
        held, stale = (held | cpus, stale) if uid in running else (held, stale | cpus)
    return cpu.shared | (stale - held)


def _released(memory: MemoryFile, running: Set[str]) -> dict[int, NumaMemory]:
    """
    Return the table after the release of finished pods' blocks (``releaseMemory`` in memorymanager/policy_static.go).

    The NUMA nodes of a block are released in ascending order. A NUMA node without blocks is in no group.
    """
    reserved = {
        numa: {name: amounts.reserved for name, amounts in table.amounts.items()}
        for numa, table in memory.machine.items()
    }
    assigned = 0
    whole_pods = {uid: {"": blocks} for uid, blocks in memory.pods.items()}
    for uid, containers in [*memory.entries.items(), *whole_pods.items()]:
        for block in (block for blocks in containers.values() for block in blocks):
            if uid in running:
                assigned |= block.numa_mask
                continue
            left = block.size
            for numa in members(block.numa_mask):
                here = reserved.get(numa, {})
                given_back = min(left, here.get(block.resource, 0))
                if given_back:
                    here[block.resource] -= given_back
                    left -= given_back
    return {
        numa: NumaMemory(
            group=table.group if assigned >> numa & 1 else 1 << numa,
            amounts={
                name: MemoryAmounts(amounts.allocatable, reserved[numa][name])
                for name, amounts in table.amounts.items()
            },
        )
        for numa, table in memory.machine.items()
    }


def is_same_state(new: KubeletCheckpoint, old: KubeletCheckpoint) -> bool:
    """Return whether the states differ only in time and in forgotten departed pods."""
    return new.gone <= old.gone and replace(new, read_at=old.read_at, gone=old.gone) == old


def reserved_cpus(host: Host, options: KubeletOptions | None, resources: PodResources | None) -> CpuSet:
    """Return the CPUs that a static CPU manager never allocates: as configured, by default all that are not allocatable."""
    if options is not None and options.reserved_cpus is not None:
        return options.reserved_cpus
    if options is None or options.cpu_policy != STATIC_CPUS or resources is None or not resources.allocatable_cpus:
        return EMPTY
    return host.cpu_set - resources.allocatable_cpus


def _known(word: str, accepted: Iterable[str]) -> str | None:
    return word if word in accepted else None


def _all_cpus(state: KubeletCheckpoint) -> CpuSet:
    return CpuSet.of(row.cpu for row in state.cpus)


def _cpu_rows(host: Host) -> Iterator[CpuRow]:
    cores: dict[int, int] = {}
    for cpu in host.cpus:
        # As the kubelet (cpumanager/topology): the id of a core is its lowest CPU, and the default cache id is the
        # socket.
        core = cores.setdefault(cpu.core, cpu.id)
        yield CpuRow(cpu.id, core, cpu.socket, cpu.numa, cpu.socket if cpu.l3 is None else cpu.l3)


def _device_masks(resources: PodResources) -> dict[str, dict[str, int]]:
    return {
        name: {device: sum(1 << numa for numa in places) for device, places in sorted(devices.items())}
        for name, devices in sorted(resources.devices.items())
    }


def _check_cpu_file(cpu: CpuFile, hardware: KubeletCheckpoint) -> None:
    if cpu.policy != STATIC_CPUS:
        if cpu.entries or cpu.pods:
            raise Contradiction(f"cpu_manager_state has the policy {cpu.policy} and exclusive CPUs")
        return
    exclusive = EMPTY
    for containers in cpu.entries.values():
        for cpus in containers.values():
            exclusive |= cpus
    for cpus in cpu.pods.values():
        exclusive |= cpus
    if both := exclusive & cpu.shared:
        raise Contradiction(f"cpu_manager_state has CPUs {both} both as exclusive and as shared")
    # Between the two writes of a release, the CPUs are in neither set.
    lost = _all_cpus(hardware) - cpu.shared - exclusive - CpuSet(hardware.reserved_cpus)
    if lost:
        raise Contradiction(f"cpu_manager_state does not mention CPUs {lost}")


def _check_memory_file(memory: MemoryFile) -> None:
    """
    Check that the blocks add up to the reserved amounts (``updateInitContainersMemoryBlocks`` keeps this invariant).

    Raises ``Contradiction``.
    """
    # With pod-level managers, blocks of containers are parts of their pod's blocks.
    if memory.pods or memory.policy != STATIC_MEMORY:
        return
    held: dict[str, int] = {}
    for containers in memory.entries.values():
        for blocks in containers.values():
            for block in blocks:
                held[block.resource] = held.get(block.resource, 0) + block.size
    for resource, reserved in _reserved(memory.machine).items():
        if reserved != held.get(resource, 0):
            raise Contradiction(
                f"memory_manager_state has {reserved} bytes of {resource} reserved, and blocks of {held.get(resource, 0)}"
            )


def _reserved(machine: Mapping[int, NumaMemory]) -> dict[str, int]:
    found: dict[str, int] = {}
    for table in machine.values():
        for resource, amounts in table.amounts.items():
            found[resource] = found.get(resource, 0) + amounts.reserved
    return found


def _check_pod(
    listed: PodHoldings,
    cpus: Mapping[str, CpuSet],
    blocks: Mapping[str, tuple[HeldMemory, ...]],
    devices: Mapping[str, Mapping[str, Set[str]]],
) -> None:
    for container in listed.containers:
        name = container.name
        if difference := _difference(container, cpus.get(name, EMPTY), blocks.get(name, ()), devices.get(name, {})):
            raise Contradiction(
                f"container {name} of pod {listed.namespace}/{listed.name} has other {difference} in podresources than in the"
                " kubelet's file"
            )


def _difference(
    container: HeldResources,
    cpus: CpuSet,
    blocks: tuple[HeldMemory, ...],
    devices: Mapping[str, Set[str]],
) -> str:
    if container.cpus != cpus:
        return "CPUs"
    if container.memory != blocks:
        return "memory"
    return "" if {name: ids for name, ids in container.devices.items() if ids} == dict(devices) else "devices"
