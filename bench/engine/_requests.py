"""The kinds of machines and the requests of the engine's synthetic clusters."""

from dataclasses import dataclass
from typing import Final

from koord_numa.core.objects.request import Container, NumaSpec, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind, CpuOwner, NumaPolicy, QosClass

GIB: Final = 1 << 30


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of machine: ``sockets x NUMA nodes x cores x threads``, GiB a CPU, who chooses CPUs."""

    shape: tuple[int, int, int, int]
    owner: CpuOwner | None
    gpus: int = 0


KINDS: Final = (
    # Ordinary two-socket servers, sub-NUMA clustering, static kubelets, small nodes without topology, GPU servers: one in five
    # each.
    Kind((2, 1, 16, 2), CpuOwner.SCHEDULER),
    Kind((2, 4, 8, 2), CpuOwner.SCHEDULER),
    Kind((2, 1, 24, 2), CpuOwner.KUBELET),
    Kind((1, 1, 16, 2), None),
    Kind((2, 4, 16, 2), CpuOwner.SCHEDULER, gpus=8),
)
EIGHT_NUMA: Final = (Kind((2, 4, 8, 2), CpuOwner.SCHEDULER),)


def pod_request(cpu: int, gib: int, qos: QosClass = QosClass.NONE, policy: NumaPolicy = NumaPolicy.NONE) -> PodRequest:
    """Milli-CPU and GiB; requests equal limits."""
    amounts = {"cpu": cpu, "memory": gib * GIB}
    container = Container("app", ContainerKind.APP, amounts, amounts)
    return PodRequest(containers=(container,), qos=qos, numa=NumaSpec(policy=policy))


# CPUs times two as GiB, the proportion of a common machine, so that memory and CPUs run out together.
REQUESTS: Final = (
    *(pod_request(cpu, gib) for cpu, gib in ((500, 1), (1000, 2), (2000, 4), (4000, 16), (8000, 16), (1500, 3))),
    *(pod_request(cpu, cpu // 500, QosClass.LSR) for cpu in (2000, 4000, 6000, 8000, 12000)),
    *(pod_request(cpu, cpu // 500, QosClass.LSE) for cpu in (2000, 4000, 16000)),
    *(pod_request(cpu, cpu // 500, QosClass.LSR, NumaPolicy.SINGLE_NUMA_NODE) for cpu in (2000, 4000, 8000)),
    *(pod_request(cpu, cpu // 500, QosClass.LS, NumaPolicy.SINGLE_NUMA_NODE) for cpu in (1000, 3000)),
    pod_request(20000, 40, QosClass.LSR, NumaPolicy.RESTRICTED),
)
"""Twenty request classes."""

FILLERS: Final = (
    pod_request(4000, 8),
    pod_request(8000, 32),
    pod_request(6000, 12),
    pod_request(8000, 16, QosClass.LSR),
    pod_request(4000, 8, QosClass.LSE),
    pod_request(16000, 32, QosClass.LSR),
)
"""What the clusters are half full of: about four pods a node."""
