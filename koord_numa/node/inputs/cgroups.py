"""
Which CPUs and whose memory containers may really use: the cpuset controller, cgroup v2 or v1.

Containers are found by their id in the tree below ``kubepods``, whatever the cgroup driver and the runtime call the directory:
``cri-containerd-<id>.scope``, ``crio-<id>.scope`` (systemd), ``<id>`` (cgroupfs). ``kubepods`` itself is below the kubelet's
``cgroupRoot``. If it is not there (the option is a flag, or the node is a container), the upper levels of the tree are searched.
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
# 64 digits with containerd, CRI-O and Docker. A static pod's directory (`pod` and 32 digits) is no container: prefixes end in a
# dash.
_CONTAINER: Final = re.compile(r"(?:[a-z][a-z0-9]*-)*([0-9a-f]{32,64})(?:\.scope)?", re.ASCII)
# Only directories of kubepods are entered: system.slice and user.slice may have thousands.
_POD: Final = re.compile(r"kubepods|besteffort|burstable|guaranteed|pod[0-9a-f]", re.ASCII)
_TOP: Final = re.compile(r"kubepods|(?:[^/]*-)?kubepods\.slice", re.ASCII)
_CPUS: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus")  # v2, v1
_MEMS: Final = ("cpuset.mems.effective", "cpuset.effective_mems")
_TOP_DEPTH: Final = 5
"""Levels in which ``kubepods`` is looked for: ``/docker/<id>/kubelet.slice/kubelet-kubepods.slice`` is at the fourth."""
_MAX_SEARCHED: Final = 5_000
"""Directories that one such search visits. Bounds it at about 50 ms."""
_DEEPEST: Final = 8  # kubepods/qos/pod/container, and what nested runtimes add


class CgroupError(Exception):
    """A cgroup could not be read or written; the text names the file."""


@dataclass(frozen=True, slots=True)
class Effective:
    """What one cgroup's processes may use: CPUs, and NUMA nodes whose memory they may allocate (empty when not asked for)."""

    cpus: CpuSet
    mems: CpuSet = EMPTY


class Cgroups:
    """The cpuset hierarchy below one mount. ``find`` and ``locate`` walk it; the reading methods use what the last walk found."""

    def __init__(self, root: Path = ROOT) -> None:
        # v2 has cgroup.controllers at its root. Hybrid mounts have it in `unified/`, and their cpuset controller is v1, which mounts one
        # hierarchy a controller or several controllers together.
        self.root = root if (root / "cgroup.controllers").exists() else _v1_root(root) or root
        self.cgroup_root = ""  # of the kubelet
        self._paths: dict[str, str] = {}

    def find(self) -> dict[str, str]:
        """The directory of every container by its id."""
        self._paths = {}
        for folder in self._tops():
            self._walk(folder, 0)
        return self._paths

    def locate(self, containers: Iterable[str]) -> None:
        """Walk the tree only if one of these containers is not known, or was not there when it was last read."""
        # One walk for all that are missing, not one each: the walk costs the same.
        if any(container not in self._paths for container in containers):
            self.find()

    def effective(self, container: str, *, mems: bool = False) -> Effective | None:
        """What a container may use now; ``None`` when it has no cgroup (any more). Raises ``CgroupError``."""
        path = self._paths.get(container)
        cpus = None if path is None else _first(path, _CPUS)
        memory = EMPTY if path is None or not mems else _first(path, _MEMS)
        if cpus is None or memory is None:
            # Forgotten, so that a container that comes back under the same id, in another directory, is looked for.
            self._paths.pop(container, None)
            return None
        return Effective(cpus, memory)

    def write(self, container: str, cpus: CpuSet, mems: str = "") -> None:
        """Set a container's cpuset behind the runtime's back. Raises ``CgroupError``; nothing happens to a container that is gone."""
        path = Path(self._paths.get(container, ""))
        if container not in self._paths or not path.is_dir():
            return
        try:
            # Memory first: no CPU of a new NUMA node shall allocate on the old one between the two writes.
            if mems:
                (path / "cpuset.mems").write_text(mems)
            (path / "cpuset.cpus").write_text(str(cpus))
        except OSError as error:
            raise CgroupError(f"{path}/cpuset.cpus: {error.strerror}") from None

    def _tops(self) -> list[str]:
        """The ``kubepods`` directories of the kubelet's configuration, else those that the tree has."""
        parts = [part for part in self.cgroup_root.split("/") if part]
        slices = [part.replace("-", "_") for part in parts]
        # systemd names a slice after all slices that it is in (`cgroupName.ToSystemd` in the kubelet's cm/cgroup_manager_linux.go).
        nested = ["-".join(slices[: end + 1]) + ".slice" for end in range(len(slices))]
        configured = (
            self.root.joinpath(*parts, "kubepods"),
            self.root.joinpath(*nested, "-".join([*slices, "kubepods"]) + ".slice"),
        )
        return [str(path) for path in configured if path.is_dir()] or self._search()

    def _search(self) -> list[str]:
        """Directories that a kubelet has made for pods, level by level."""
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
                    continue  # it ended while we looked
            level = sorted(below)
        return sorted(found)

    def _walk(self, folder: str, depth: int) -> None:
        try:
            with os.scandir(folder) as entries:
                for entry in entries:
                    if not entry.is_dir(follow_symlinks=False):
                        continue
                    if match := _CONTAINER.fullmatch(entry.name):
                        # A container's own children (systemd inside it) are not entered: their cpusets are the container's
                        # business.
                        self._paths[match.group(1)] = entry.path
                    elif depth < _DEEPEST and _POD.search(entry.name):
                        self._walk(entry.path, depth + 1)
        except OSError:
            return  # it ended while we looked


def _v1_root(root: Path) -> Path | None:
    """The hierarchy of the cpuset controller below the mounts of cgroup v1."""
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
            with open(path, encoding="ascii") as file:  # noqa: PTH123  (hundreds a round: a Path each costs twice the reading)
                text = file.read().strip()
        # The next name: the file of the other cgroup version, or none when the cgroup has gone.
        except FileNotFoundError:
            continue
        except OSError as error:
            if error.errno == errno.ENODEV:  # the cgroup ended between opening and reading
                return None
            raise CgroupError(f"{path}: {error.strerror}") from None
        try:
            return CpuSet.parse(text)
        except ValueError as error:
            raise CgroupError(f"{path}: {error}") from None
    return None
