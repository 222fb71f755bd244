"""
Effective CPUs of containers (cpuset controller, cgroup v1 and v2), compared with the allocated CPUs, and events about differences.

A difference counts after ``GRACE`` seconds: it is normal between the start of a container and the update of its cpuset.
"""

import errno
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from time import monotonic
from typing import Any, Final
from uuid import uuid4

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.node.pods import DecidedPod

# Read and write effective CPUs and memory nodes of containers with the cpuset controller, cgroup v2 or v1.
#
# Containers are found by id in the tree below ``kubepods``. The name of the directory depends on cgroup driver and
# runtime: ``cri-containerd-<id>.scope``, ``crio-<id>.scope`` (systemd), ``<id>`` (cgroupfs). ``kubepods`` is below the
# kubelet's ``cgroupRoot``. If it is not there (the option is a flag, or the node is a container), the upper levels of the
# tree are searched.

ROOT: Final = Path("/sys/fs/cgroup")
# 64 digits with containerd, CRI-O and Docker. The directory of a static pod (`pod` and 32 digits) does not match:
# prefixes end in a dash.
_CONTAINER: Final = re.compile(r"(?:[a-z][a-z0-9]*-)*([0-9a-f]{32,64})(?:\.scope)?", re.ASCII)
# Only directories of kubepods are entered: system.slice and user.slice may have thousands.
_POD: Final = re.compile(r"kubepods|besteffort|burstable|guaranteed|pod[0-9a-f]", re.ASCII)
_TOP: Final = re.compile(r"kubepods|(?:[^/]*-)?kubepods\.slice", re.ASCII)
_CPUS: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus")  # v2, v1
_MEMS: Final = ("cpuset.mems.effective", "cpuset.effective_mems")
_TOP_DEPTH: Final = 5
"""Levels searched for ``kubepods``: ``/docker/<id>/kubelet.slice/kubelet-kubepods.slice`` is at the fourth."""
_MAX_SEARCHED: Final = 5_000
"""Maximum directories that a search visits. Bounds it at about 50 ms."""
_DEEPEST: Final = 8  # kubepods/qos/pod/container, and levels of nested runtimes


class CgroupError(Exception):
    """A cgroup cannot be read or written. The text names the file."""


@dataclass(frozen=True, slots=True)
class Effective:
    """The effective CPUs of a cgroup, and the NUMA nodes of its memory (empty if not requested)."""

    cpus: CpuSet
    mems: CpuSet = EMPTY


class Cgroups:
    """The cpuset hierarchy below a mount. ``find`` and ``locate`` walk it, the other methods use the last walk."""

    def __init__(self, root: Path = ROOT) -> None:
        # v2 has cgroup.controllers at its root. Hybrid mounts have it in `unified/`, and their cpuset controller is v1,
        # which mounts a hierarchy per controller or for several controllers.
        self.root = root if (root / "cgroup.controllers").exists() else _v1_root(root) or root
        self.cgroup_root = ""  # of the kubelet
        self._paths: dict[str, str] = {}

    def find(self) -> dict[str, str]:
        """Walk the tree. Return the directory of every container by id."""
        self._paths = {}
        for folder in self._tops():
            self._walk(folder, 0)
        return self._paths

    def locate(self, containers: Iterable[str]) -> None:
        """Walk the tree if any of these containers is unknown or was absent in its last read."""
        # One walk for all missing containers.
        if any(container not in self._paths for container in containers):
            self.find()

    def effective(self, container: str, *, mems: bool = False) -> Effective | None:
        """Return the effective sets of a container, ``None`` if it has no cgroup. Raises ``CgroupError``."""
        path = self._paths.get(container)
        cpus = None if path is None else _first(path, _CPUS)
        memory = EMPTY if path is None or not mems else _first(path, _MEMS)
        if cpus is None or memory is None:
            # Removed, so that the next walk finds a container with the same id in another directory.
            self._paths.pop(container, None)
            return None
        return Effective(cpus, memory)

    def write(self, container: str, cpus: CpuSet, mems: str = "") -> None:
        """Set the cpuset of a container without the runtime. Does nothing if the container is gone. Raises ``CgroupError``."""
        path = Path(self._paths.get(container, ""))
        if container not in self._paths or not path.is_dir():
            return
        try:
            # Memory first: a CPU of a new NUMA node must not allocate on the old NUMA node between the two writes.
            if mems:
                (path / "cpuset.mems").write_text(mems)
            (path / "cpuset.cpus").write_text(str(cpus))
        except OSError as error:
            raise CgroupError(f"{path}/cpuset.cpus: {error.strerror}") from None

    def _tops(self) -> list[str]:
        """Return the ``kubepods`` directories of the kubelet's configuration, by default those found in the tree."""
        parts = [part for part in self.cgroup_root.split("/") if part]
        slices = [part.replace("-", "_") for part in parts]
        # systemd prefixes a slice with all parent slices (`cgroupName.ToSystemd` in the kubelet's
        # cm/cgroup_manager_linux.go).
        nested = ["-".join(slices[: end + 1]) + ".slice" for end in range(len(slices))]
        configured = (
            self.root.joinpath(*parts, "kubepods"),
            self.root.joinpath(*nested, "-".join([*slices, "kubepods"]) + ".slice"),
        )
        return [str(path) for path in configured if path.is_dir()] or self._search()

    def _search(self) -> list[str]:
        """Return the ``kubepods`` directories in the tree, level by level."""
        found: list[str] = []
        level = [str(self.root)]
        visited = 0
        for _ in range(_TOP_DEPTH):
            below: list[str] = []
            for folder in level:
                visited += 1
                if visited > _MAX_SEARCHED:
                    return found
                try:
                    with os.scandir(folder) as entries:
                        for entry in entries:
                            if entry.is_dir(follow_symlinks=False):
                                (found if _TOP.fullmatch(entry.name) else below).append(entry.path)
                except OSError:
                    continue  # removed during the search
            level = sorted(below)
        return sorted(found)

    def _walk(self, folder: str, depth: int) -> None:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        continue
                    if match := _CONTAINER.fullmatch(entry.name):
                        # The children of a container (systemd in it) are not entered: their cpusets are not managed
                        # here.
                        self._paths[match.group(1)] = entry.path
                    elif depth < _DEEPEST and _POD.search(entry.name):
                        self._walk(entry.path, depth + 1)
        except OSError:
            return  # removed during the walk


def _v1_root(root: Path) -> Path | None:
    """Return the hierarchy of the cpuset controller below the mounts of cgroup v1."""
    try:
        return next(
            (path for path in sorted(root.iterdir()) if "cpuset" in path.name.split(",") and path.is_dir()), None
        )
    except OSError:
        return None


def _first(folder: str, names: tuple[str, ...]) -> CpuSet | None:
    for name in names:
        path = f"{folder}/{name}"
        try:
            with open(path, encoding="ascii") as file:  # noqa: PTH123  (hundreds per round: a Path costs twice the read)
                text = file.read().strip()
        # Try the next name: the file of the other cgroup version. None exists if the cgroup is gone.
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno == errno.ENODEV:  # the cgroup was removed after open
                return None
            raise CgroupError(f"{path}: {error.strerror}") from None
        try:
            return CpuSet.parse(text)
        except ValueError as error:
            raise CgroupError(f"{path}: {error}") from None
    return None


CONTROLLER: Final = "koord-numa-node-agent"
MISMATCH: Final = "CpusetMismatch"
MATCH: Final = "CpusetMatch"
CONFLICT: Final = "CpusetConflict"
ISOLATION: Final = "CpuIsolationRefused"
_LONGEST_NOTE: Final = 1000  # events.k8s.io/v1 validation: note below 1 KiB


def mismatch_event(pod: DecidedPod, text: str, node: str) -> dict[str, Any]:
    """Return an ``events.k8s.io/v1`` event: a warning with the text, or, without text, that the pod runs on its allocated CPUs."""
    return {
        **_event(pod, text or f"runs on the decided CPUs {pod.cpus}", node),
        "type": "Warning" if text else "Normal",
        "reason": MISMATCH if text else MATCH,
        "reportingController": CONTROLLER,
    }


def conflict_event(pod: DecidedPod, text: str, node: str) -> dict[str, Any]:
    """Return a warning that two writers set different values for a cpuset."""
    return {**_event(pod, text, node), "type": "Warning", "reason": CONFLICT, "reportingController": CONTROLLER}


def isolation_event(pod: DecidedPod, text: str, node: str) -> dict[str, Any]:
    """Return a warning that the requested isolation of CPUs is not honored."""
    return {**_event(pod, text, node), "type": "Warning", "reason": ISOLATION, "reportingController": CONTROLLER}


def _event(pod: DecidedPod, text: str, node: str) -> dict[str, Any]:
    return {
        "apiVersion": "events.k8s.io/v1",
        "kind": "Event",
        # The API server rejects names above 253 characters. The pod name is truncated, and the random part kept.
        "metadata": {"name": f"{pod.name[:200]}.{uuid4().hex[:16]}", "namespace": pod.namespace},
        "eventTime": datetime.now(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z"),
        "note": text[:_LONGEST_NOTE],
        "action": "Observing",
        "reportingInstance": f"{CONTROLLER}-{node}"[:128],  # the longest valid instance name
        "regarding": {
            "apiVersion": "v1",
            "kind": "Pod",
            "namespace": pod.namespace,
            "name": pod.name,
            "uid": pod.uid,
        },
    }


GRACE: Final = 5.0
"""Seconds after which a difference counts."""

MOST_TOLD: Final = 50
"""Maximum differences in the annotation, the first ones by pod name."""


@dataclass(frozen=True, slots=True)
class Difference:
    """
    A pod that does not run on the CPUs that the scheduler decided. ``mems`` are its memory nodes, empty if only CPUs differ.

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
