"""
Which CPUs and whose memory containers may really use: the cpuset controller, cgroup v2 or v1.

Containers are found by their id in the tree below ``kubepods``, whatever the cgroup driver and the runtime call the directory:
``cri-containerd-<id>.scope``, ``crio-<id>.scope`` (systemd), ``<id>`` (cgroupfs).
"""

import errno
import os
import re
from collections.abc import Iterable, Iterator
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
_CPUS: Final = ("cpuset.cpus.effective", "cpuset.effective_cpus")  # v2, v1
_MEMS: Final = ("cpuset.mems.effective", "cpuset.effective_mems")
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
        v1 = root / "cpuset"  # cgroup v1 mounts one hierarchy a controller
        # v2 has cgroup.controllers at its root. Hybrid mounts have it in `unified/`, and their cpuset controller is v1.
        self.root = v1 if v1.is_dir() and not (root / "cgroup.controllers").exists() else root
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

    def _tops(self) -> Iterator[str]:
        try:
            with os.scandir(self.root) as entries:
                # `kubepods` (cgroupfs) and `kubepods.slice` (systemd).
                yield from (entry.path for entry in entries if entry.is_dir() and entry.name.startswith("kubepods"))
        except OSError:
            return

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
