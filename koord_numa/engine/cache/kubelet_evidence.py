"""
Evidence for unpublished options of a kubelet: options that a rejection proved to be on, and pods that explore options.

Evidence is read from API objects, so a restart of the scheduler loses none: running pods, pods that failed with a reason of the kubelet,
and the annotation of exploring pods. Evidence expires when the kubelet may run with another configuration: after another boot of the
machine, with another kubelet version, or with a newer Ready condition (node lifecycle, ``kubelet_node_status.go``).
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Final

from koord_numa.core.kubelet.demand import (
    OUT_OF,
    REASONS,
    SMT_ALIGNMENT,
    TOPOLOGY_AFFINITY,
    UNEXPECTED_ADMISSION,
    pod_demand,
)
from koord_numa.core.kubelet.node_config import NodeConfig
from koord_numa.core.objects.node import Node
from koord_numa.core.objects.request import Pod, PodRequest

UNDATED: Final = float("inf")
"""Time of evidence from a pod without a start time. It expires only with another boot or kubelet version."""


@dataclass(slots=True)
class KubeletEvidence:
    """
    Evidence for the options of one node's kubelet. Times are seconds since the epoch by the node's clock.

    ``exploring`` has the explored options of pods in flight, by UID. The other fields have the time of a rejected pod. ``found_on``: by
    option that the pod explored. ``kept_cores``: the rejection was for whole cores. ``kept_pairs``: also, enough CPUs were free. ``since``
    is the start of the Ready condition, ``life`` identifies the boot and the kubelet version.
    """

    exploring: dict[str, tuple[str, ...]] = field(default_factory=dict)
    found_on: dict[str, float] = field(default_factory=dict)
    kept_cores: float | None = None
    kept_pairs: float | None = None
    since: float = 0.0
    life: str = ""

    def __bool__(self) -> bool:
        """Return whether there is evidence that would be lost with this object."""
        return self.kept_cores is not None or bool(self.found_on)

    @property
    def keeps_cores(self) -> bool:
        """Whether the kubelet has rejected a pod for whole cores, which proves that full-pcpus-only is on."""
        return self.kept_cores is not None

    @property
    def keeps_pairs(self) -> bool:
        """Whether the kubelet allocates whole cores only, and its cores have several threads."""
        return self.kept_pairs is not None

    @property
    def latest(self) -> float | None:
        """Start time of the latest rejected pod; ``None`` if no rejected pod has a start time."""
        return max(
            (when for when in (self.kept_cores, *self.found_on.values()) if when not in (None, UNDATED)), default=None
        )

    def observe_node(self, node: Node) -> bool:
        """
        Process the current Node. Evidence from before its Ready condition is discarded.

        Return whether the boot or the kubelet version has changed. The state of the kubelet is then unknown as well.
        """
        is_other = bool(self.life) and node.kubelet != self.life
        self.life, self.since = node.kubelet, max(self.since, node.kubelet_since)
        # Evidence from before the kubelet became Ready again may be of another configuration.
        self.found_on = {option: when for option, when in self.found_on.items() if when >= self.since}
        if self.kept_cores is not None and self.kept_cores < self.since:
            self.kept_cores = None
        if self.kept_pairs is not None and self.kept_pairs < self.since:
            self.kept_pairs = None
        return is_other

    def is_of_this_life(self, pod: Pod) -> bool:
        """Return whether the kubelet admitted the pod with its current configuration."""
        # A pod without a start time counts: discarding it would lose evidence of a running pod.
        return not pod.started_at or pod.started_at >= self.since

    def admitted_counts(self, pods: Iterable[Pod]) -> frozenset[int]:
        """Return the numbers of exclusive CPUs of containers that the kubelet has admitted with its current configuration."""
        found: set[int] = set()
        for pod in pods:
            if pod.started and self.is_of_this_life(pod):
                found.update(pod_demand(pod.request).counts)
        return frozenset(found)

    def admitted(self, request: PodRequest) -> None:
        """Process the start of a pod. An odd number of CPUs disproves ``keeps_pairs``."""
        if any(count % 2 for count in pod_demand(request).counts):
            self.kept_pairs = None

    def explore(self, uid: str, options: tuple[str, ...]) -> None:
        """Record that the pod explores options. No other pod explores the node until the kubelet's verdict."""
        self.exploring[uid] = options

    def decided(self, uid: str) -> None:
        """Record that the pod explores no longer: it runs, is gone, or was never bound."""
        self.exploring.pop(uid, None)

    def rejected(self, pod: Pod, *, had_cpus: bool = False) -> None:
        """
        Process a rejection by the kubelet. The same pod may be processed repeatedly.

        ``had_cpus``: enough CPUs were free in every state. A rejection for whole cores then proves that cores have several threads.
        """
        # The annotation outlives this process; ``exploring`` does not.
        options = self.exploring.pop(pod.key.uid, ()) or pod.explores
        when = pod.started_at or UNDATED
        if when < self.since:
            return
        for option in options:
            self.found_on[option] = max(when, self.found_on.get(option, 0.0))
        if pod.reason == SMT_ALIGNMENT:
            self.kept_cores = max(when, self.kept_cores or 0.0)
            if had_cpus:
                self.kept_pairs = max(when, self.kept_pairs or 0.0)


def is_kubelet_rejection(pod: Pod) -> bool:
    """Return whether a kubelet rejected this pod at admission, by the reasons of its admission handlers (OutOfcpu, ...)."""
    return pod.phase == "Failed" and (pod.reason in REASONS or pod.reason.startswith(OUT_OF))


def tells_of_numa(request: PodRequest, reason: str, frame: NodeConfig | None) -> bool:
    """Return whether the rejection depends on the tracked state: not on whole cores, node-wide amounts, or devices that no zone lists."""
    devices = () if frame is None else frame.devices
    parts = (part.devices.items() for _, part in pod_demand(request).containers)
    unlisted = any(count and name not in devices for part in parts for name, count in part)
    return reason == TOPOLOGY_AFFINITY or (reason == UNEXPECTED_ADMISSION and not unlisted)
