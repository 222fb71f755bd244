"""A cgroup v2 tree of a simulated node, as plain files: one directory a container, as systemd's driver and containerd name them."""

import shutil
from pathlib import Path

from koord_numa.core.cpuset import CpuSet


class ContainerCgroups:
    """The ``kubepods.slice`` of one node. What is written to ``cpuset.cpus`` is effective as far as the machine has it."""

    def __init__(self, root: Path, cpus: CpuSet, mems: CpuSet) -> None:
        self.root = root
        self.cpus = cpus
        self.mems = mems
        self._folders: dict[str, Path] = {}
        root.mkdir(parents=True, exist_ok=True)
        (root / "cgroup.controllers").write_text("cpuset cpu memory\n")

    def create(self, container: str, pod_uid: str) -> None:
        """A container that may use every CPU and all memory."""
        slice_name = f"kubepods-pod{pod_uid.replace('-', '_')}.slice"
        folder = self.root / "kubepods.slice" / slice_name / f"cri-containerd-{container}.scope"
        folder.mkdir(parents=True, exist_ok=True)
        self._folders[container] = folder
        self.set(container, self.cpus, self.mems)

    def set(self, container: str, cpus: CpuSet | None = None, mems: CpuSet | None = None) -> None:
        """Change a container's cpuset. Raises ``KeyError`` when it does not run, ``ValueError`` when nothing would be left to it."""
        folder = self._folders[container]
        for name, wanted, known in (("cpus", cpus, self.cpus), ("mems", mems, self.mems)):
            if wanted is None:
                continue
            if not wanted & known:
                raise ValueError(f"cpuset.{name}: none of {wanted} is online")
            (folder / f"cpuset.{name}").write_text(f"{wanted}\n")
            (folder / f"cpuset.{name}.effective").write_text(f"{wanted & known}\n")

    def effective(self, container: str) -> CpuSet:
        """The CPUs that a container may use."""
        return CpuSet.parse((self._folders[container] / "cpuset.cpus.effective").read_text().strip())

    def remove(self, container: str) -> None:
        """The container has ended."""
        if folder := self._folders.pop(container, None):
            shutil.rmtree(folder.parent if len(list(folder.parent.iterdir())) == 1 else folder)

    @property
    def containers(self) -> frozenset[str]:
        """The ids of those that run."""
        return frozenset(self._folders)
