"""
Compare allocated with effective CPUs: find pods that run on other CPUs than the scheduler allocated.

A difference counts after ``GRACE`` seconds: it is normal between the start of a container and the update of its cpuset.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.node.decided import DecidedPod
from koord_numa.node.inputs.cgroups import Cgroups

GRACE: Final = 5.0
"""Seconds after which a difference counts."""

MOST_TOLD: Final = 50
"""Maximum differences in the annotation, the first ones by pod name."""


@dataclass(frozen=True, slots=True)
class Difference:
    """
    A pod that runs on other CPUs. ``mems`` is empty if only CPUs differ.

    ``missing`` is the name of a running container without a cpuset cgroup, whose CPUs are unknown.
    """

    pod: DecidedPod
    cpus: CpuSet
    mems: CpuSet = EMPTY
    missing: str = ""

    def __str__(self) -> str:
        """Return a text such as ``decided 1-4,49-52, runs on 0-95``."""
        if self.missing:
            return f"decided {self.pod.cpus}, container {self.missing} has no cgroup"
        text = f"decided {self.pod.cpus}, runs on {self.cpus}" if self.cpus != self.pod.cpus else f"runs on {self.cpus}"
        if self.mems:
            wanted = CpuSet.of(self.pod.numa)
            text += f", memory decided on NUMA nodes {wanted} comes from {self.mems}"
        return text


@dataclass(frozen=True, slots=True)
class Observation:
    """The result of a comparison: all counting differences, and those that are new or resolved since the last one."""

    differences: tuple[Difference, ...] = ()
    appeared: tuple[Difference, ...] = ()
    resolved: tuple[DecidedPod, ...] = ()
    checked: int = 0


class Observer:
    """Compares pods with their cgroups. ``mems`` includes memory, for nodes where ``cpuset.mems`` is applied."""

    def __init__(self, cgroups: Cgroups, *, mems: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._cgroups = cgroups
        self._mems = mems
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: dict[str, DecidedPod] = {}

    def look(self, pods: Iterable[DecidedPod]) -> Observation:
        """Compare every pod that has an allocated cpuset. Raises ``CgroupError`` if a cgroup cannot be read."""
        now = self._clock()
        found: dict[str, Difference] = {}
        present: dict[str, DecidedPod] = {}
        bound = [pod for pod in pods if pod.cpus]
        self._cgroups.locate(one.id for pod in bound for one in pod.containers if one.running and one.id)
        # Pods on shared CPUs have no cpuset to compare: the pool changes with every pinned pod.
        for pod in bound:
            present[pod.uid] = pod
            difference = self._difference(pod)
            if difference is not None:
                found[pod.uid] = difference
        # A difference must be uninterrupted to count.
        self._since = {uid: self._since.get(uid, now) for uid in found}
        counted = {uid: one for uid, one in found.items() if now - self._since[uid] >= GRACE}
        appeared = tuple(one for uid, one in counted.items() if uid not in self._told)
        resolved = tuple(present[uid] for uid in self._told if uid not in found and uid in present)
        # No event for a deleted pod: its object is gone.
        self._told = {uid: one.pod for uid, one in counted.items()}
        return Observation(tuple(counted.values()), appeared, resolved, len(bound))

    def _difference(self, pod: DecidedPod) -> Difference | None:
        """Compare all containers of a pod. A single container that differs is enough."""
        cpus, mems, missing = EMPTY, EMPTY, ""
        for container in pod.containers:
            effective = (
                self._cgroups.effective(container.id, mems=self._mems) if container.running and container.id else None
            )
            if effective is None:
                if container.running and container.id:
                    missing = missing or container.name
                continue
            if effective.cpus != pod.cpus:
                cpus |= effective.cpus
            # Subset, not equality: memory on fewer NUMA nodes than allocated is permitted.
            if self._mems and pod.numa and not effective.mems <= CpuSet.of(pod.numa):
                mems |= effective.mems
        if not cpus and not mems:
            return Difference(pod, EMPTY, missing=missing) if missing else None
        return Difference(pod, cpus or pod.cpus, mems)  # if only memory differs, the CPUs are the allocated ones


def told(differences: Iterable[Difference], why: str, missing: str = "") -> dict[str, dict[str, str]]:
    """
    Return the contents of the annotation by ``namespace/name``, at most ``MOST_TOLD`` entries in order.

    ``why`` explains pods on other CPUs, ``missing`` those without a cgroup.
    """
    ordered = sorted(differences, key=lambda one: one.pod.key)[:MOST_TOLD]
    return {
        one.pod.key: {"decided": str(one.pod.cpus), "observed": str(one.cpus), "why": missing if one.missing else why}
        for one in ordered
    }
