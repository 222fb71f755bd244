"""
What pods have shown of a kubelet's options that are not published: which a refusal proved to be on, and which pods are finding out.

Evidence is read from API objects, so a restart of the scheduler loses none: pods that run, pods that failed with the kubelet's reason, and
the annotation that a pod carries which explores. It ends when the kubelet may run with another configuration: another boot of the
machine, another kubelet version, or a Ready condition that has begun since (node lifecycle, ``kubelet_node_status.go``).
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
"""The time of evidence whose pod does not say when it came: it ends only with the boot or the kubelet's version."""


@dataclass(slots=True)
class KubeletEvidence:
    """
    Of one node. Times are seconds since the epoch by the node's clock. ``kept_cores``, ``kept_pairs`` and ``found_on`` have the time of the
    refused pod: for its whole cores, for them although it had CPUs enough, or for the options that it explored. ``exploring`` has these, by
    uid, of pods on their way.
    """

    exploring: dict[str, tuple[str, ...]] = field(default_factory=dict)
    found_on: dict[str, float] = field(default_factory=dict)
    kept_cores: float | None = None
    kept_pairs: float | None = None
    since: float = 0.0
    life: str = ""

    def __bool__(self) -> bool:
        """Would something be forgotten with this object?"""
        return self.kept_cores is not None or bool(self.found_on)

    @property
    def keeps_cores(self) -> bool:
        """Has the kubelet refused a pod for its whole cores? Then full-pcpus-only is on."""
        return self.kept_cores is not None

    @property
    def keeps_pairs(self) -> bool:
        """Does the kubelet give away whole cores only, which have several threads?"""
        return self.kept_pairs is not None

    @property
    def latest(self) -> float | None:
        """When the latest refused pod came; ``None`` without one that says when."""
        return max(
            (when for when in (self.kept_cores, *self.found_on.values()) if when not in (None, UNDATED)), default=None
        )

    def observe_node(self, node: Node) -> bool:
        """
        The Node as it is now. What was shown by an earlier life of the kubelet is forgotten.

        Returns whether the machine or its kubelet is another one, so that nothing is left of its state either.
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
        """Did the kubelet admit the pod with the configuration that it has now?"""
        # An unknown start counts: discarding it would lose evidence of a pod that runs.
        return not pod.started_at or pod.started_at >= self.since

    def admitted_counts(self, pods: Iterable[Pod]) -> frozenset[int]:
        """The numbers of exclusive CPUs of containers that the kubelet has admitted with the configuration that it has now."""
        found: set[int] = set()
        for pod in pods:
            if pod.started and self.is_of_this_life(pod):
                found.update(pod_demand(pod.request).counts)
        return frozenset(found)

    def admitted(self, request: PodRequest) -> None:
        """The kubelet runs a pod that was on its way: with an odd number of CPUs it cannot be as was thought."""
        if any(count % 2 for count in pod_demand(request).counts):
            self.kept_pairs = None

    def explore(self, uid: str, options: tuple[str, ...]) -> None:
        """This pod is placed to find out about options; until its fate is known no other explores the node."""
        self.exploring[uid] = options

    def decided(self, uid: str) -> None:
        """The pod runs, is gone, or never came."""
        self.exploring.pop(uid, None)

    def rejected(self, pod: Pod, *, had_cpus: bool = False) -> None:
        """
        The kubelet refused the pod; the same pod may be seen again and again.

        ``had_cpus``: as many CPUs as it asked for were free in any case, so that it was refused for its numbers if for whole cores: these
        have several threads.
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
    """Did a kubelet refuse this pod at its door? As its admission handlers name their reasons (OutOfcpu, ...)."""
    return pod.phase == "Failed" and (pod.reason in REASONS or pod.reason.startswith(OUT_OF))


def tells_of_numa(request: PodRequest, reason: str, frame: NodeConfig | None) -> bool:
    """Is the pod refused for what is followed: not for whole cores, node-wide amounts, or devices that no zone lists?"""
    devices = () if frame is None else frame.devices
    parts = (part.devices.items() for _, part in pod_demand(request).containers)
    unlisted = any(count and name not in devices for part in parts for name, count in part)
    return reason == TOPOLOGY_AFFINITY or (reason == UNEXPECTED_ADMISSION and not unlisted)
