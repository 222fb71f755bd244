"""NodeResourceTopologies as NFD's topology updater and the resource topology exporter publish a kubelet's state."""

from collections.abc import Iterable, Iterator
from typing import Final

from koord_numa.core.kubelet.state import KubeletNode, KubeletState
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.resources import CPU, MEMORY, MILLI
from koord_numa.sandbox.machines.hardware.description import NodeDescription
from koord_numa.sandbox.machines.hardware.koordinator_topology import resource, topology_policy, zone_object
from koord_numa.sandbox.machines.hardware.node_objects import Json
from koord_numa.wire import names
from koord_numa.wire.node.fingerprint import fingerprint

ALL_PODS: Final = "all"


def exported_topology(
    node: NodeDescription, kubelet: KubeletNode, state: KubeletState, pods: Iterable[tuple[str, str]]
) -> Json:
    """
    The topology at one moment; ``pods`` are (namespace, name) of all that run.

    ``cpu`` is listed only where the kubelet assigns CPUs, ``memory`` and huge pages only where it binds memory: there is
    nothing to align otherwise. A zone with nothing to say still says that it has no CPUs to give.
    """
    return {
        "apiVersion": f"{names.TOPOLOGY_GROUP}/v1alpha2",
        "kind": names.TOPOLOGY_KIND,
        "metadata": {"name": node.name},
        "topologyPolicies": [topology_policy(node.kubelet)],
        "attributes": [{"name": name, "value": value} for name, value in _attributes(node, pods)],
        "zones": [
            zone_object(node, numa, [*_resources(node, kubelet, state, numa)] or [_nothing(kubelet, numa)])
            for numa in node.hardware.machine.numa_ids
        ],
    }


def _attributes(node: NodeDescription, pods: Iterable[tuple[str, str]]) -> Iterator[tuple[str, str]]:
    config = node.kubelet
    yield names.ATTRIBUTE_TOPOLOGY_POLICY, (config.topology_policy or KubeletPolicy.NONE).value
    yield names.ATTRIBUTE_TOPOLOGY_SCOPE, config.topology_scope.value
    yield names.ATTRIBUTE_MAX_NUMA_NODES, str(config.max_numa_nodes)
    yield names.ATTRIBUTE_FINGERPRINT, fingerprint(pods)
    yield names.ATTRIBUTE_FINGERPRINT_METHOD, ALL_PODS
    if not node.hidden:
        yield from _unusual_attributes(config)


def _unusual_attributes(config: KubeletConfig) -> Iterator[tuple[str, str]]:
    """What no exporter publishes today, though a scheduler could use it."""
    for option, value in sorted(config.topology_options.items()):
        yield names.ATTRIBUTE_TOPOLOGY_OPTION + _camel(option), str(value).lower()
    yield names.ATTRIBUTE_CPU_POLICY, config.cpu_policy or "none"
    for option, value in sorted(config.cpu_options.items()):
        yield names.ATTRIBUTE_CPU_OPTION + _camel(option), str(value).lower()
    yield names.ATTRIBUTE_MEMORY_POLICY, config.memory_policy or "None"
    yield names.ATTRIBUTE_RESERVED_CPUS, str(config.reserved_cpus or "")


def _resources(node: NodeDescription, kubelet: KubeletNode, state: KubeletState, numa: int) -> Iterator[dict[str, str]]:
    here = kubelet.machine.numa_bits[numa]
    if kubelet.pins_cpus and here:
        may = (here & ~kubelet.reserved).bit_count() * MILLI
        free = (here & state.managers.cpus).bit_count() * MILLI
        yield resource(CPU, here.bit_count() * MILLI, may, free)
    if state.managers.memory is not None:
        yield from _memory(node, kubelet, state, numa)
    for name, pool in sorted(kubelet.devices.items()):
        near = pool.near(1 << numa) & pool.healthy
        if near:
            count = near.bit_count()
            yield resource(name, count, count, (near & ~state.managers.devices[name]).bit_count())


def _memory(node: NodeDescription, kubelet: KubeletNode, state: KubeletState, numa: int) -> Iterator[dict[str, str]]:
    assert state.managers.memory is not None  # noqa: S101  (the caller asks only where memory is bound)
    capacity = {MEMORY: node.hardware.memory.get(numa, 0), **node.hardware.hugepage_bytes(numa)}
    free = state.managers.memory.free.get(numa, {})
    for name, amount in kubelet.memory.get(numa, {}).items():
        if amount or name == MEMORY:
            yield resource(name, capacity[name], amount, free.get(name, 0))


def _nothing(kubelet: KubeletNode, numa: int) -> dict[str, str]:
    return resource(CPU, kubelet.machine.numa_bits[numa].bit_count() * MILLI, 0, 0)


def _camel(option: str) -> str:
    return "".join(word.capitalize() for word in option.split("-"))
