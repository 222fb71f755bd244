"""
Decided against effective: which pods run on other CPUs than a scheduler decided for them, since when, and why that may be.

A difference counts once it has been there for ``GRACE`` seconds: between the start of a container and the update of its cpuset lies a
moment in which it is normal.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from time import monotonic
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.node.decided import DecidedPod
from koord_numa.node.inputs.cgroups import Cgroups

GRACE: Final = 5.0
"""Seconds."""

MOST_TOLD: Final = 50
"""Differences in the annotation; where more pods are wrong, the first ones by name say what is the matter."""


@dataclass(frozen=True, slots=True)
class Difference:
    """
    One pod that runs elsewhere. ``mems`` is empty where only CPUs differ.

    ``missing`` names a container that runs and has no cgroup with a cpuset: whether it is on its CPUs is not known.
    """

    pod: DecidedPod
    cpus: CpuSet
    mems: CpuSet = EMPTY
    missing: str = ""

    def __str__(self) -> str:
        """``decided 1-4,49-52, runs on 0-95``."""
        if self.missing:
            return f"decided {self.pod.cpus}, container {self.missing} has no cgroup"
        text = f"decided {self.pod.cpus}, runs on {self.cpus}" if self.cpus != self.pod.cpus else f"runs on {self.cpus}"
        if self.mems:
            wanted = CpuSet.of(self.pod.numa)
            text += f", memory decided on NUMA nodes {wanted} comes from {self.mems}"
        return text


@dataclass(frozen=True, slots=True)
class Observation:
    """What one look has shown: all differences that count, and those that are new or over since the look before."""

    differences: tuple[Difference, ...] = ()
    appeared: tuple[Difference, ...] = ()
    resolved: tuple[DecidedPod, ...] = ()
    checked: int = 0


class Observer:
    """Compares pods with their cgroups. ``mems`` asks for memory too, where ``cpuset.mems`` is to be applied."""

    def __init__(self, cgroups: Cgroups, *, mems: bool = False, clock: Callable[[], float] = monotonic) -> None:
        self._cgroups = cgroups
        self._mems = mems
        self._clock = clock
        self._since: dict[str, float] = {}
        self._told: dict[str, DecidedPod] = {}

    def look(self, pods: Iterable[DecidedPod]) -> Observation:
        """Compare every pod that has a decided cpuset. Raises ``CgroupError`` when a cgroup cannot be read."""
        now = self._clock()
        found: dict[str, Difference] = {}
        present: dict[str, DecidedPod] = {}
        bound = [pod for pod in pods if pod.cpus]
        self._cgroups.locate(one.id for pod in bound for one in pod.containers if one.running and one.id)
        # Pods that share have no cpuset to compare with; their pool moves whenever a bound pod comes or goes.
        for pod in bound:
            present[pod.uid] = pod
            difference = self._difference(pod)
            if difference is not None:
                found[pod.uid] = difference
        # A pod that agrees for one look starts over: only an uninterrupted difference counts.
        self._since = {uid: self._since.get(uid, now) for uid in found}
        counted = {uid: one for uid, one in found.items() if now - self._since[uid] >= GRACE}
        appeared = tuple(one for uid, one in counted.items() if uid not in self._told)
        resolved = tuple(present[uid] for uid in self._told if uid not in found and uid in present)
        # A pod that is deleted while it differs leaves silently: an event on it would be about an object that is gone.
        self._told = {uid: one.pod for uid, one in counted.items()}
        return Observation(tuple(counted.values()), appeared, resolved, len(bound))

    def _difference(self, pod: DecidedPod) -> Difference | None:
        """All containers together: one that strays is enough, and what it may use says most."""
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
            # Subset, not equality: memory on fewer NUMA nodes than decided breaks no promise.
            if self._mems and pod.numa and not effective.mems <= CpuSet.of(pod.numa):
                mems |= effective.mems
        if not cpus and not mems:
            return Difference(pod, EMPTY, missing=missing) if missing else None
        return Difference(pod, cpus or pod.cpus, mems)  # only memory differs: the CPUs are the decided ones


def told(differences: Iterable[Difference], why: str, missing: str = "") -> dict[str, dict[str, str]]:
    """
    The annotation's contents by ``namespace/name``, the first ``MOST_TOLD`` of them in order.

    ``why`` explains pods that run elsewhere, ``missing`` those without a cgroup.
    """
    ordered = sorted(differences, key=lambda one: one.pod.key)[:MOST_TOLD]
    return {
        one.pod.key: {"decided": str(one.pod.cpus), "observed": str(one.cpus), "why": missing if one.missing else why}
        for one in ordered
    }
