"""CPUs of a scheduler-owned node that no pod is given: reserved by the kubelet, by the node's annotation, or for system QoS."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from pydantic import TypeAdapter

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.node import KubeletAllocation
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.node.kubelet_config import BOOLEANS
from koord_numa.wire.node.node_annotations import reservation
from koord_numa.wire.parsed_cache import ParsedCache
from koord_numa.wire.parsing import GoJson, load_json, read_as, read_json
from koord_numa.wire.pod.pod_annotations import cpu_list


class PodCpuAllocation(GoJson):
    """One entry of ``node.koordinator.sh/pod-cpu-allocs``; the proposal says ``cpu`` and writes the boolean as text."""

    namespace: str = ""
    name: str = ""
    uid: str = ""
    cpuset: str = ""
    cpu: str = ""
    managed_by_kubelet: bool | str = False


class SystemQos(GoJson):
    """``node.koordinator.sh/system-qos-resource``; exclusive unless it says otherwise."""

    cpuset: str = ""
    cpuset_exclusive: bool = True


@dataclass(frozen=True, slots=True)
class ReservedCpus:
    """The union of all sources, those of them that only the kubelet's configuration reserves, and the pods among them."""

    cpus: CpuSet
    by_kubelet_alone: CpuSet
    kubelet_pods: tuple[KubeletAllocation, ...]


def reserved_cpus(annotations: Mapping[str, str], kubelet: CpuSet | None, path: FieldPath) -> ReservedCpus:
    """
    The four sources of koordinator's topology options: pods of the kubelet's CPU manager, the kubelet's reserved CPUs,
    the node's reservation (whatever its apply policy), exclusive CPUs of the SYSTEM QoS class.

    The same texts are read once: they change when a static kubelet's pods do, and otherwise hardly ever.
    """
    key = (kubelet, *map(annotations.get, _SOURCES))
    # What is malformed is read each time: its error names the object.
    return _RESERVED.get(key) or _RESERVED.put(
        key, _read(annotations, kubelet, path), sum(len(annotations.get(name, "")) for name in _SOURCES)
    )


def _read(annotations: Mapping[str, str], kubelet: CpuSet | None, path: FieldPath) -> ReservedCpus:
    pods = _kubelet_pods(annotations, path)
    # Whatever its apply policy: reserved CPUs are never given to pods.
    cpus = reservation(annotations, path).cpus | _system_cpus(annotations, path)
    for pod in pods:
        if pod.managed_by_kubelet:
            cpus |= pod.cpus
    by_kubelet = kubelet or EMPTY
    # Those that only the kubelet reserves may be released by configuration (``kubeletReservedCPUs``).
    return ReservedCpus(cpus | by_kubelet, by_kubelet - cpus, pods)


def _kubelet_pods(annotations: Mapping[str, str], path: FieldPath) -> tuple[KubeletAllocation, ...]:
    text = annotations.get(names.POD_CPU_ALLOCS)
    if text is None:
        return ()
    path = path.annotation(names.POD_CPU_ALLOCS)
    found = read_as(_ALLOCATIONS, load_json(text, path), path) or []
    pods = [
        KubeletAllocation(
            namespace=entry.namespace,
            name=entry.name,
            uid=entry.uid,
            # ``cpu`` is the proposal's name for the field.
            cpus=cpu_list(entry.cpuset or entry.cpu, path),
            managed_by_kubelet=_flag(entry.managed_by_kubelet, path.at("managedByKubelet")),
        )
        for entry in found
    ]
    return tuple(sorted(pods, key=lambda pod: (pod.namespace, pod.name, pod.uid)))


def _system_cpus(annotations: Mapping[str, str], path: FieldPath) -> CpuSet:
    text = annotations.get(names.SYSTEM_QOS_RESOURCE)
    if text is None:
        return EMPTY
    path = path.annotation(names.SYSTEM_QOS_RESOURCE)
    found = read_json(SystemQos, text, path)
    cpus = cpu_list(found.cpuset, path.at("cpuset"))
    # CPUs that system pods share with others are not reserved.
    return cpus if found.cpuset_exclusive else EMPTY


def _flag(value: bool | str, path: FieldPath) -> bool:
    # The proposal writes the boolean as a text.
    return value if isinstance(value, bool) else bool(value) and BOOLEANS.read(value, path)


_ALLOCATIONS: Final = TypeAdapter(list[PodCpuAllocation] | None)

_SOURCES: Final = (names.POD_CPU_ALLOCS, names.RESERVATION, names.SYSTEM_QOS_RESOURCE)

_RESERVED: Final[ParsedCache[tuple[CpuSet | str | None, ...], ReservedCpus]] = ParsedCache(8 << 20)
