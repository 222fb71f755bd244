"""Effective cpusets: in trees as runtimes lay them out, and in the machine's own cgroups where the tests may make some."""

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from uuid import uuid4

import pytest

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.applier import CgroupRuntime, ContainerTarget, apply
from koord_numa.node.observer import GRACE, CgroupError, Cgroups, Observer
from koord_numa.node.pods import DecidedContainer, DecidedPod

ID = "0123456789abcdef" * 4
MOUNT = Path("/sys/fs/cgroup")


@pytest.mark.parametrize(
    "path",
    [
        f"kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice/cri-containerd-{ID}.scope",
        f"kubepods.slice/kubepods-pod1_2.slice/crio-{ID}.scope",
        f"kubepods/besteffort/pod1-2/{ID}",
        f"kubepods/pod1-2/{ID}",
    ],
)
def test_containers_are_found_in_every_layout(tmp_path: Path, path: str) -> None:
    (tmp_path / "cgroup.controllers").touch()
    folder = tmp_path / path
    folder.mkdir(parents=True)
    (folder / "cpuset.cpus.effective").write_text("0-3\n")
    (folder / "cpuset.mems.effective").write_text("0\n")
    (tmp_path / "system.slice" / f"cri-containerd-{ID}.scope").mkdir(parents=True)
    cgroups = Cgroups(tmp_path)
    assert cgroups.find() == {ID: str(folder)}
    effective = cgroups.effective(ID, mems=True)
    assert effective is not None
    assert (str(effective.cpus), str(effective.mems)) == ("0-3", "0")


BURSTABLE = "kubelet-kubepods-burstable"
KIND = f"kubelet.slice/kubelet-kubepods.slice/{BURSTABLE}.slice/{BURSTABLE}-pod1_2.slice/cri-containerd-{ID}.scope"
LAYOUTS = {
    "kind, systemd": ("/kubelet", KIND),
    "kind, cgroupfs": ("/kubelet", f"kubelet/kubepods/burstable/pod1-2/{ID}"),
    "two levels, systemd": (
        "/my-parts/b",
        f"my_parts.slice/my_parts-b.slice/my_parts-b-kubepods.slice/my_parts-b-kubepods-pod1.slice/crio-{ID}.scope",
    ),
    "two levels, cgroupfs": ("/my-parts/b", f"my-parts/b/kubepods/pod1/{ID}"),
    "a root that the configuration does not say": ("", KIND),
    "a node in a container": ("/kubelet", f"docker/abc/{KIND}"),
}


@pytest.mark.parametrize("mount", ["", "cpuset", "cpu,cpuset"], ids=["v2", "v1", "v1, mounted together"])
@pytest.mark.parametrize(("cgroup_root", "path"), LAYOUTS.values(), ids=LAYOUTS.keys())
def test_containers_are_found_below_any_cgroup_root(tmp_path: Path, cgroup_root: str, path: str, mount: str) -> None:
    if not mount:
        (tmp_path / "cgroup.controllers").touch()
    folder = tmp_path / mount / path
    folder.mkdir(parents=True)
    cgroups = Cgroups(tmp_path)
    cgroups.cgroup_root = cgroup_root
    assert cgroups.find() == {ID: str(folder)}


def test_hybrid_mounts_have_their_cpusets_in_v1(tmp_path: Path) -> None:
    (tmp_path / "unified").mkdir()
    (tmp_path / "unified" / "cgroup.controllers").touch()
    (tmp_path / "cpuset" / "kubepods" / "pod1" / ID).mkdir(parents=True)
    assert Cgroups(tmp_path).find() == {ID: str(tmp_path / "cpuset" / "kubepods" / "pod1" / ID)}


def test_cgroup_v1_has_other_names(tmp_path: Path) -> None:
    folder = tmp_path / "cpuset" / "kubepods" / "pod1" / ID
    folder.mkdir(parents=True)
    (folder / "cpuset.effective_cpus").write_text("1\n")
    (folder / "cpuset.effective_mems").write_text("0\n")
    cgroups = Cgroups(tmp_path)
    cgroups.find()
    effective = cgroups.effective(ID)
    assert effective is not None
    assert str(effective.cpus) == "1"


def test_a_container_that_is_gone_and_one_that_is_garbled(tmp_path: Path) -> None:
    cgroups = Cgroups(tmp_path)
    assert not cgroups.find()
    assert cgroups.effective(ID) is None
    cgroups.write(ID, CpuSet.of([0]))
    folder = tmp_path / "kubepods" / "pod1" / ID
    folder.mkdir(parents=True)
    (folder / "cpuset.cpus.effective").write_text("nonsense\n")
    cgroups.find()
    with pytest.raises(CgroupError, match="nonsense"):
        cgroups.effective(ID)


def _cpuset_root() -> Path | None:
    """Return a folder of this machine in which the test can make cgroups with a cpuset, of either version."""
    v1 = MOUNT / "cpuset"
    if v1.is_dir() and os.access(v1, os.W_OK):
        return v1
    controllers = MOUNT / "cgroup.subtree_control"
    try:
        return MOUNT if "cpuset" in controllers.read_text().split() and os.access(MOUNT, os.W_OK) else None
    except OSError:
        return None


@pytest.fixture
def container() -> Iterator[tuple[str, int, str]]:
    """A process in a cgroup of its own below ``kubepods``, on all CPUs: the ids of container and process, and the kubelet's cgroup root."""
    root = _cpuset_root()
    if root is None:
        pytest.skip("no cgroup with a cpuset can be made here")
    name = uuid4().hex * 2
    cgroup_root = f"test-{os.getpid()}"
    top = root / cgroup_root
    folder = top / "kubepods" / "pod1" / name
    made = []
    try:
        for path in (top, top / "kubepods", folder.parent, folder):
            path.mkdir()
            made.append(path)
            if path is not folder and (path / "cgroup.subtree_control").exists():
                (path / "cgroup.subtree_control").write_text("+cpuset")
            if (path / "cpuset.effective_cpus").exists():  # v1 begins empty
                for what in ("cpus", "mems"):
                    (path / f"cpuset.{what}").write_text((path.parent / f"cpuset.effective_{what}").read_text())
    except OSError as error:
        for path in reversed(made):
            path.rmdir()
        pytest.skip(f"no cgroup with a cpuset can be made here: {error}")
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        (folder / "cgroup.procs").write_text(str(process.pid))
        yield name, process.pid, cgroup_root
    finally:
        process.communicate(b"\n")
        for path in reversed(made):
            path.rmdir()


async def test_a_real_process_is_observed_and_moved(container: tuple[str, int, str]) -> None:
    name, process, cgroup_root = container
    every = os.sched_getaffinity(process)
    if len(every) < 2:
        pytest.skip("one CPU can be told from no other")
    wanted = CpuSet.of([min(every)])
    pod = DecidedPod("default", "a", "1", cpus=wanted, containers=(DecidedContainer("c", name, running=True),))
    now = 0.0
    cgroups = Cgroups(MOUNT)
    cgroups.cgroup_root = f"/{cgroup_root}"
    observer = Observer(cgroups, clock=lambda: now)
    observer.look([pod])
    now = GRACE
    (difference,) = observer.look([pod]).differences
    assert difference.cpus == CpuSet.of(every)
    done = await apply([ContainerTarget(name, wanted)], cgroups, CgroupRuntime(cgroups))
    assert (done.updated, dict(done.errors)) == (frozenset({name}), {})
    assert os.sched_getaffinity(process) == set(wanted)
    assert observer.look([pod]).resolved == (pod,)
    assert (await apply([ContainerTarget(name, wanted)], cgroups, CgroupRuntime(cgroups))).updated == set()
    # An empty set is never written: it would stop the container.
    refused = await apply([ContainerTarget(name, CpuSet.of([4000]))], cgroups, CgroupRuntime(cgroups))
    assert refused.updated == set()
    assert refused.errors
    assert os.sched_getaffinity(process) == set(wanted)
