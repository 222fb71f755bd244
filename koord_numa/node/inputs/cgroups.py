"""
Read and write effective CPUs and memory nodes of containers with the cpuset controller, cgroup v2 or v1.

Containers are found by id in the tree below ``kubepods``. The name of the directory depends on cgroup driver and
runtime: ``cri-containerd-<id>.scope``, ``crio-<id>.scope`` (systemd), ``<id>`` (cgroupfs). ``kubepods`` is below the
kubelet's ``cgroupRoot``. If it is not there (the option is a flag, or the node is a container), the upper levels of the
tree are searched.
"""

import errno
import os
import re
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet

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
