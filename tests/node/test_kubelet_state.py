"""Files, podresources and pods of one instant: put together, or discarded as a contradiction."""

from collections.abc import Callable
from typing import Any, Final

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import (
    ContainerState,
    CpuRow,
    HeldMemory,
    KubeletCheckpoint,
    MemoryAmounts,
    NumaMemory,
)
from koord_numa.core.value_objects import replace
from koord_numa.node.kubelet_files import CpuFile, KubeletFiles, KubeletOptions, MemoryFile, kubelet_options
from koord_numa.node.kubelet_state import (
    Contradiction,
    Evidence,
    UnallocatedPod,
    check_listing,
    check_presence,
    evidence_of,
    exact_state,
    hardware_state,
    is_same_state,
    with_evidence,
)
from koord_numa.node.podresources import HeldResources, PodHoldings, PodResources
from koord_numa.node.pods import BoundPod
from koord_numa.node.sysfs import Host, HostCpu, HostNuma
from tests.tables import each_row

GIB: Final = 2**30
HOST: Final = Host(
    cpus=tuple(HostCpu(id=cpu, core=cpu % 4, socket=0, die=0, numa=cpu % 4 // 2, l3=None) for cpu in range(8)),
    numa=(HostNuma(0, 16 * GIB), HostNuma(1, 16 * GIB)),
)
OPTIONS: Final = KubeletOptions(
    cpu_policy="static", memory_policy="Static", cpu_options={"full-pcpus-only": "true"}, reserved_cpus=CpuSet.of([0])
)


def amounts(first: int, second: int, *, group: bool = False) -> dict[int, NumaMemory]:
    """The memory table of two NUMA nodes with so much reserved."""
    return {
        numa: NumaMemory(3 if group else 1 << numa, {"memory": MemoryAmounts(16 * GIB, reserved)})
        for numa, reserved in enumerate((first, second))
    }


def blocks(size: int, mask: int = 1) -> tuple[HeldMemory, ...]:
    """One block."""
    return (HeldMemory(mask, "memory", size),)


FILES: Final = KubeletFiles(
    cpu=CpuFile("static", CpuSet.parse("0,3-7"), {"a": {"app": CpuSet.parse("1-2"), "init": CpuSet.parse("1")}}),
    memory=MemoryFile("Static", amounts(GIB, 0), {"a": {"app": blocks(GIB), "init": blocks(0)}}),
    devices={"a": {"app": {"x/gpu": frozenset({"g1"})}}},
)
LISTED: Final = PodHoldings(
    "default",
    "pod-a",
    (HeldResources("app", CpuSet.parse("1-2"), {"x/gpu": frozenset({"g1"})}, blocks(GIB)),),
)
OTHER: Final = PodHoldings("default", "pod-b", (HeldResources("app"),))
RESOURCES: Final = PodResources(
    pods=(LISTED, OTHER),
    allocatable_cpus=CpuSet.parse("1-7"),
    devices={"x/gpu": {"g0": frozenset({0}), "g1": frozenset({0, 1}), "g2": frozenset()}},
)
PODS: Final = (
    BoundPod("default", "pod-a", "a", "a", pinned=frozenset({"app"}), started=True),
    BoundPod("default", "pod-b", "b", "b", started=True),
)
EXPECTED: Final = KubeletCheckpoint(
    read_at=5.0,
    cpus=tuple(CpuRow(cpu, cpu % 4, 0, cpu % 4 // 2, 0) for cpu in range(8)),
    reserved_cpus=1,
    cpu_policy="static",
    memory_policy="Static",
    cpu_options={"full-pcpus-only": True},
    device_numa={"x/gpu": {"g0": 1, "g1": 3, "g2": 0}},
    default_cpus=0b11111001,
    pods={
        "a": {
            "app": ContainerState(cpus=0b110, memory=blocks(GIB), devices={"x/gpu": ("g1",)}),
            "init": ContainerState(cpus=0b10),
        }
    },
    active=frozenset({"a", "b"}),
    memory=amounts(GIB, 0),
)


def state(
    files: KubeletFiles = FILES,
    resources: PodResources = RESOURCES,
    pods: tuple[BoundPod, ...] = PODS,
    departed: tuple[str, ...] = (),
) -> KubeletCheckpoint:
    """The state that these sources make."""
    return exact_state(hardware_state(HOST, OPTIONS, resources, 5.0), files, resources, pods, departed)


def test_sources_that_agree() -> None:
    assert state() == EXPECTED


def test_what_files_keep_of_ended_pods_is_free() -> None:
    """Their CPUs are in the shared pool and their memory is released, as the kubelet does before the next admission."""
    files = KubeletFiles(
        cpu=CpuFile(
            "static",
            CpuSet.parse("0,5-7"),
            {"a": FILES.cpu.entries["a"], "old": {"c": CpuSet.parse("3-4")}} if FILES.cpu else {},
        ),
        memory=MemoryFile(
            "Static",
            amounts(GIB, 20 * GIB, group=True),
            {"a": {"app": blocks(GIB)}, "old": {"c": blocks(20 * GIB, 2)}},
        ),
        devices={**(FILES.devices or {}), "old": {"c": {"x/gpu": frozenset({"g0"})}}},
    )
    expected = amounts(GIB, 0)
    expected[0] = replace(expected[0], group=3)
    assert state(files, departed=("older", "b")) == replace(EXPECTED, gone=frozenset({"old", "older"}), memory=expected)


def test_an_ended_pod_shares_cpus_with_a_running_one_of_its_name() -> None:
    """A CPU that an ended pod and a running one both have stays with the running one."""
    assert FILES.cpu is not None
    entries = {**FILES.cpu.entries, "old": {"c": CpuSet.parse("1")}}
    assert state(replace(FILES, cpu=replace(FILES.cpu, entries=entries))).default_cpus == EXPECTED.default_cpus


def test_a_static_pod_is_named_by_its_mirror_pod() -> None:
    mirror = BoundPod("default", "pod-a", "mirror", "a", started=True)
    found = state(pods=(mirror, PODS[1]))
    assert set(found.pods) == {"mirror"}
    assert found.active == {"mirror", "b"}


def test_pods_with_pod_level_managers() -> None:
    assert FILES.cpu is not None
    assert FILES.memory is not None
    files = replace(
        FILES,
        cpu=replace(FILES.cpu, shared=CpuSet.parse("0,5-7"), pods={"b": CpuSet.parse("3-4")}),
        memory=replace(FILES.memory, machine=amounts(GIB, GIB), pods={"b": blocks(GIB, 2)}),
    )
    assert state(files).pod_level == {"b": ContainerState(cpus=0b11000, memory=blocks(GIB, 2))}


def test_a_kubelet_that_has_written_nothing() -> None:
    empty = PodResources(pods=(OTHER,), allocatable_cpus=CpuSet.parse("1-7"))
    found = state(KubeletFiles(), empty, PODS[1:])
    assert found == replace(
        EXPECTED, pods={}, active=frozenset({"b"}), default_cpus=0xFF, memory={}, device_numa={}, gone=frozenset()
    )
    assert found.is_exact


def cpu(**changes: Any) -> KubeletFiles:
    """Another file of the CPU manager."""
    assert FILES.cpu is not None
    return replace(FILES, cpu=replace(FILES.cpu, **changes))


def listed(**changes: Any) -> PodResources:
    """Another entry of the container in podresources."""
    container = replace(LISTED.containers[0], **changes)
    return replace(RESOURCES, pods=(replace(LISTED, containers=(container,)), OTHER))


CONTRADICTIONS: Final[dict[str, tuple[Callable[[], KubeletCheckpoint], str]]] = {
    "CPUs in neither set": (lambda: state(cpu(shared=CpuSet.parse("0,3-6"))), "does not mention CPUs 7"),
    "CPUs in both sets": (lambda: state(cpu(shared=CpuSet.parse("0-7"))), "both as exclusive and as shared"),
    "entries gone before the shared pool grows": (lambda: state(cpu(entries={})), "does not mention CPUs 1-2"),
    "exclusive CPUs without a static policy": (lambda: state(cpu(policy="none")), "policy none"),
    "CPUs not listed yet": (lambda: state(resources=listed(cpus=CpuSet())), "other CPUs"),
    "other CPUs listed": (lambda: state(resources=listed(cpus=CpuSet.parse("1"))), "other CPUs"),
    "other devices listed": (lambda: state(resources=listed(devices={"x/gpu": frozenset({"g0"})})), "other devices"),
    "devices without a file": (lambda: state(replace(FILES, devices=None)), "other devices"),
    "memory not listed yet": (lambda: state(resources=listed(memory=())), "other memory"),
    "memory still reserved": (
        lambda: state(replace(FILES, memory=MemoryFile("Static", amounts(GIB, 0)))),
        "1073741824 bytes of memory reserved, and blocks of 0",
    ),
    "a pod that the watch has not shown": (lambda: state(pods=PODS[:1]), "pod default/pod-b"),
}


@each_row(("read", "text"), CONTRADICTIONS.values(), ids=CONTRADICTIONS.keys())
def test_sources_that_contradict_each_other(read: Callable[[], KubeletCheckpoint], text: str) -> None:
    with pytest.raises(Contradiction, match=text):
        read()


def test_reserved_cpus_may_be_left_out_of_the_shared_pool() -> None:
    """With strict-cpu-reservation."""
    assert state(cpu(shared=CpuSet.parse("3-7"))).default_cpus == 0b11111000


def test_an_ended_pod_that_old_kubelets_list_is_not_active() -> None:
    found = state(pods=(PODS[0], replace(PODS[1], ended=True)))
    assert found.active == {"a"}


@pytest.mark.parametrize("static", [True, False])
def test_a_pinned_container_without_cpus(static: bool) -> None:
    without = listed(cpus=CpuSet())
    if static:
        with pytest.raises(UnallocatedPod, match="container app of pod default/pod-a without CPUs"):
            check_listing(without, PODS, static=True)
    else:
        check_listing(without, PODS, static=False)
    check_listing(RESOURCES, PODS, static=static)


def test_an_ended_pod_may_have_no_cpus() -> None:
    check_listing(listed(cpus=CpuSet()), (replace(PODS[0], ended=True), PODS[1]), static=True)


NOTHING: Final = PodResources(allocatable_cpus=CpuSet.parse("1-7"))
ONE: Final = replace(RESOURCES, pods=(LISTED,))
RUNS: Final = PODS[1]
PRESENCE: Final[dict[str, tuple[PodResources, BoundPod, bool, bool]]] = {
    "an empty list": (NOTHING, RUNS, False, True),
    "a list without a pod that runs": (ONE, RUNS, False, True),
    "a pod that has not started": (ONE, replace(RUNS, started=False), False, False),
    "not started, in a file": (ONE, replace(RUNS, started=False, kubelet_uid="a"), False, True),
    "an ended pod": (ONE, replace(RUNS, ended=True), False, False),
    "a pod that is being deleted": (ONE, replace(RUNS, deleting=True), False, False),
    "being deleted, and the list is empty": (NOTHING, replace(RUNS, deleting=True), False, True),
    "being deleted, and the kubelet has just started": (ONE, replace(RUNS, deleting=True), True, True),
    "listed": (RESOURCES, RUNS, True, False),
}


@each_row(("resources", "pod", "restarted", "contradicts"), PRESENCE.values(), ids=PRESENCE.keys())
def test_a_running_pod_must_be_listed(
    resources: PodResources, pod: BoundPod, restarted: bool, contradicts: bool
) -> None:
    if contradicts:
        with pytest.raises(Contradiction, match="pod default/pod-b"):
            check_presence(resources, FILES, (pod,), restarted=restarted)
    else:
        check_presence(resources, FILES, (pod,), restarted=restarted)


def test_time_alone_is_no_change() -> None:
    old = replace(EXPECTED, gone=frozenset({"x", "y"}))
    assert is_same_state(replace(EXPECTED, read_at=9.0, gone=frozenset({"x"})), old)
    assert not is_same_state(replace(EXPECTED, gone=frozenset({"z"})), old)
    assert not is_same_state(replace(old, default_cpus=1), old)


FLAGS: Final = kubelet_options({"kind": "KubeletConfiguration", "topologyManagerScope": "pod"})


def test_evidence_overrides_the_configuration() -> None:
    """A value that the configuration leaves out is unknown: a flag may contain it."""
    evidence = evidence_of(None, RESOURCES)
    assert evidence.cpus == "container app of pod default/pod-a has exclusive CPUs 1-2"
    found = with_evidence(FLAGS, evidence)
    assert found is not None
    assert (found.cpu_policy, found.memory_policy, found.reserved_cpus) == ("static", "Static", None)
    assert dict(found.attributes()) == {
        "topologyManagerScope": "pod",
        "topologyManagerMaxNUMANodes": "8",
        "cpuManagerPolicy": "static",
        "memoryManagerPolicy": "Static",
    }
    hardware = hardware_state(HOST, found, RESOURCES, 5.0)
    assert (hardware.cpu_policy, hardware.cpu_options, hardware.reserved_cpus) == ("static", None, 1)


def test_a_file_is_evidence_too() -> None:
    assert evidence_of(FILES, None) == Evidence(
        "its file cpu_manager_state has the policy static", "its file memory_manager_state has the policy Static"
    )
    assert evidence_of(KubeletFiles(cpu=CpuFile("none")), PodResources(pods=(OTHER,))) == Evidence()


def test_evidence_that_agrees_changes_nothing() -> None:
    assert with_evidence(OPTIONS, Evidence("a", "b")) is OPTIONS
    assert with_evidence(FLAGS, Evidence()) is FLAGS
    assert with_evidence(None, Evidence("a", "b")) is None
