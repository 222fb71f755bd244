"""What has to be mended before a node can be judged, or before the pod can be placed anywhere: one row a reason."""

from collections.abc import Iterator, Mapping
from typing import Final

from koord_numa.core.verdicts import Reason
from koord_numa.view.advice.probe import Probe, Remedy

REPAIRS: Final[Mapping[Reason, str]] = {
    Reason.NO_TOPOLOGY: "publish a NodeResourceTopology for {node} (is its node agent running?), or set nodesWithoutTopology: Permissive",
    Reason.BAD_TOPOLOGY: "repair the NodeResourceTopology of {node}: {detail}",
    Reason.BAD_NODE: "repair the Node object {node}: {detail}",
    Reason.BAD_POD: "repair the pod: {detail}",
    Reason.UNTRUSTED: "settle who owns the CPUs of {node}: {detail}",
    Reason.COOLING_DOWN: "wait: {node} rests after its kubelet refused such a pod; its events have the reason",
    Reason.UNSCHEDULABLE: "kubectl uncordon {node}",
    Reason.LOCKED: "wait until the RebindResource on {node} has ended",
    Reason.VOLUME: "{detail}",
    Reason.UNSUPPORTED: "remove what is not supported from the pod: {detail}",
}


def situations(probe: Probe) -> Iterator[Remedy]:
    """One line for each such reason, about the first node in order that has it."""
    told: set[Reason] = set()
    for name, rejection in sorted(probe.rejections.items()):
        row = REPAIRS.get(rejection.reason)
        if row is not None and rejection.reason not in told:
            told.add(rejection.reason)
            yield Remedy("repair", name, row.format(node=name, detail=rejection.detail or rejection.message))
