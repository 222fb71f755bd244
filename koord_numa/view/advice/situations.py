"""What has to be mended before a node can be judged, or before the pod can be placed anywhere: one row a reason."""

from collections.abc import Iterator, Mapping
from typing import Final

from koord_numa.core.explain import amounts_text, bare_amount
from koord_numa.core.objects.verdicts import Reason
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.resources import CPU, MILLI
from koord_numa.view.advice.probe import Probe, Remedy

ZONES_MISSING: Final = "publish the NUMA nodes of {node} as zones of its NodeResourceTopology: {detail}"
"""The repair for ``NO_TOPOLOGY`` where the node has a NodeResourceTopology."""

REPAIRS: Final[Mapping[Reason, str]] = {
    Reason.NO_TOPOLOGY: "publish a NodeResourceTopology for {node} (is its node agent running?), or set nodesWithoutTopology: Permissive",
    Reason.BAD_TOPOLOGY: "repair the NodeResourceTopology of {node}: {detail}",
    Reason.BAD_NODE: "repair the Node object {node}: {detail}",
    Reason.BAD_POD: "repair the pod: {detail}",
    Reason.UNTRUSTED: "settle who owns the CPUs of {node}: {detail}",
    Reason.COOLING_DOWN: "wait: {node} rests after its kubelet refused such a pod; its events have the reason",
    Reason.UNSCHEDULABLE: "kubectl uncordon {node}",
    Reason.LOCKED: "wait until the RebindResource on {node} has ended",
    Reason.VOLUME: "settle the pod's volumes: {detail}",
    Reason.UNSUPPORTED: "remove what is not supported from the pod: {detail}",
}


def situations(probe: Probe) -> Iterator[Remedy]:
    """Topologies that lag behind, then one line for each such reason, about the first node in order that has it."""
    yield from _lagging(probe)
    told: set[Reason] = set()
    for name, rejection in sorted(probe.rejections.items()):
        row = REPAIRS.get(rejection.reason)
        if row is not None and rejection.reason not in told and probe.may_use(name):
            told.add(rejection.reason)
            if rejection.reason is Reason.NO_TOPOLOGY and _is_published(probe, name):
                row = ZONES_MISSING
            yield Remedy("repair", name, row.format(node=name, detail=rejection.detail or rejection.message))


def _is_published(probe: Probe, node: str) -> bool:
    info = probe.scheduler.cache.nodes.get(node)
    return info is not None and info.current is not None


def _lagging(probe: Probe) -> Iterator[Remedy]:
    """
    A kubelet-owned node whose topology shows more CPUs in use than all pods known there ask for: pods have left, and it does not show it.

    Decisions take the published amounts, as another scheduler's pod may have come that no watch has shown yet.
    """
    for name in probe.closest:
        info = probe.scheduler.cache.nodes.get(name)
        topology = None if info is None else info.topology
        if info is None or topology is None or topology.owner is not CpuOwner.KUBELET or not probe.may_use(name):
            continue
        shown = sum(zone.allocatable.get(CPU, 0) - zone.available.get(CPU, 0) for zone in topology.zones)
        asked = info.ledger.amounts.get(CPU, 0)
        if shown - asked >= MILLI:
            text = (
                f"the topology of {name} shows {amounts_text({CPU: shown})} in use, and the pods there ask for {bare_amount(CPU, asked)}: "
                "its node agent lags behind or has stopped"
            )
            yield Remedy("repair", name, text)
            return
