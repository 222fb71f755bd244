"""
The NRI plugin with a real containerd: a container's first process runs on the decided CPUs.

Needs root, runc, and containerd 1.7 or newer (``KOORD_NUMA_CONTAINERD`` names another binary); skipped with the reason elsewhere.
"""

import asyncio
import hashlib
import io
import json
import os
import re
import shutil
import subprocess
import tarfile
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final

import pytest
from grpc import aio

from koord_numa.core.cpuset import CpuSet
from koord_numa.node.nri_plugin import NriPlugin, PinningPlan
from koord_numa.node.podresources import RuntimeClient
from koord_numa.node.pods import NodePods
from koord_numa.node.sysfs import read_host
from koord_numa.wire import names

BINARY: Final = os.environ.get("KOORD_NUMA_CONTAINERD", "containerd")
IMAGE: Final = "docker.io/koord-numa/test:1"
CONFIG: Final = """version = 2
root = "{folder}/root"
state = "{folder}/state"
[grpc]
  address = "{folder}/c.sock"
[plugins."io.containerd.nri.v1.nri"]
  disable = false
  socket_path = "{folder}/nri.sock"
  plugin_path = "{folder}/plugins"
  plugin_config_path = "{folder}/plugin-config"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{image}"
  disable_apparmor = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".containerd]
    snapshotter = "native"
"""


def _unavailable() -> str:
    if os.geteuid() != 0:
        return "containerd needs root"
    if shutil.which(BINARY) is None or shutil.which("runc") is None:
        return "no containerd or no runc on this machine"
    text = subprocess.run([BINARY, "--version"], capture_output=True, text=True, check=False).stdout
    version = re.search(r"(\d+)\.(\d+)\.\d+", text)
    if version is None or (int(version[1]), int(version[2])) < (1, 7):
        return f"containerd has NRI from 1.7 on, this is {text.strip()!r}"
    if len(os.sched_getaffinity(0)) < 2:
        return "one CPU can be told from no other"
    return ""


pytestmark = pytest.mark.skipif(bool(_unavailable()), reason=_unavailable() or "available")


class Containerd:
    """One containerd in a folder of its own, with an image that contains ``sh``, ``cat`` and ``sleep``."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.cri, self.nri = folder / "c.sock", folder / "nri.sock"
        self._process: Any = None
        (folder / "config.toml").write_text(CONFIG.format(folder=folder, image=IMAGE))

    async def start(self) -> None:
        with (self.folder / "log").open("ab") as log:
            self._process = await asyncio.create_subprocess_exec(
                BINARY, "-c", str(self.folder / "config.toml"), stdout=log, stderr=log
            )
        for _ in range(200):
            await asyncio.sleep(0.05)
            with suppress(aio.AioRpcError):
                await self.call("Version", {})
                return
        pytest.skip(f"containerd does not start here: {(self.folder / 'log').read_text()[-500:]}")

    async def stop(self) -> None:
        self._process.terminate()
        await self._process.wait()

    def load_image(self) -> None:
        archive = self.folder / "image.tar"
        _write_image(archive)
        command = [shutil.which("ctr", path=_beside(BINARY)) or "ctr", "-a", str(self.cri), "-n", "k8s.io"]
        subprocess.run([*command, "images", "import", "--all-platforms", str(archive)], check=True, capture_output=True)

    async def call(self, method: str, request: dict[int, Any]) -> str:
        """Call CRI; the answers in use have one text, an id."""
        async with aio.insecure_channel(f"unix:{self.cri}", options=[("grpc.enable_http_proxy", 0)]) as channel:
            answer = await channel.unary_unary(f"/runtime.v1.RuntimeService/{method}")(_encoded(request), timeout=30)
        return bytes(answer[2:]).decode(errors="replace")

    async def run(self, name: str, cpuset: str) -> "Running":
        """A pod with a decided cpuset on the host's network, whose container writes down its CPUs first of all."""
        out = self.folder / name
        out.mkdir()
        annotations = {names.RESOURCE_STATUS: json.dumps({"cpuset": cpuset})}
        namespaces = {1: 2, 2: 1, 3: 2}  # the node's network and IPC
        meta = {1: name, 2: f"uid-{name}", 3: "default"}
        config = {1: meta, 3: str(out), 6: _map({"io.kubernetes.pod.uid": f"uid-{name}"}), 7: _map(annotations)}
        config[8] = {1: "/koord-numa-test", 2: {1: namespaces}}
        pod = await self.call("RunPodSandbox", {1: config})
        script = "cat /proc/self/status > /out/new; cat /out/new > /out/status; sleep 1000"
        container = {1: {1: "c"}, 2: {1: IMAGE}, 3: ["/bin/sh", "-c", script], 11: "c.log"}
        container[7] = [{1: "/out", 2: str(out)}]
        container[9] = _map({"io.kubernetes.pod.uid": f"uid-{name}", "io.kubernetes.container.name": "c"})
        container[15] = {1: {2: 100_000, 3: 1024}, 2: {3: namespaces}}
        found = await self.call("CreateContainer", {1: pod, 2: container, 3: config})
        await self.call("StartContainer", {1: found})
        return Running(pod, found, out)

    async def remove(self, running: "Running") -> None:
        await self.call("StopPodSandbox", {1: running.pod})
        await self.call("RemovePodSandbox", {1: running.pod})


class Running:
    """A pod with one container."""

    def __init__(self, pod: str, container: str, out: Path) -> None:
        self.pod, self.container, self._out = pod, container, out

    async def first_cpus(self) -> str:
        """The CPUs of the container's first process, as it saw them itself."""
        for _ in range(400):
            await asyncio.sleep(0.02)
            with suppress(OSError):
                if found := re.search(
                    r"Cpus_allowed_list:\s*(\S+)\n[^$]*nonvoluntary", (self._out / "status").read_text()
                ):
                    return found[1]
        raise AssertionError("the container has written nothing")


@asynccontextmanager
async def containerd() -> AsyncIterator[Containerd]:
    with TemporaryDirectory(prefix="kn-", dir="/tmp", ignore_cleanup_errors=True) as folder:
        runtime = Containerd(Path(folder))
        await runtime.start()
        try:
            runtime.load_image()
            yield runtime
        finally:
            await runtime.stop()


async def test_a_container_starts_on_its_cpus_and_stays_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("koord_numa.node.nri_plugin.RETRY", 0.05)
    every = CpuSet.of(os.sched_getaffinity(0))
    wanted, other = str(CpuSet.of([min(every)])), str(CpuSet.of([max(every)]))
    host = read_host(Path("/sys"))
    async with containerd() as runtime:
        pods = NodePods(None, "n")  # type: ignore[arg-type]  # nothing is asked of an API server
        plugin = NriPlugin(runtime.nri, pods, lambda: PinningPlan(host), lambda: None)
        connected = asyncio.create_task(plugin.run())
        running: list[Running] = []
        try:
            await _until_connected(plugin)
            try:
                running.append(await runtime.run("first", wanted))
            except aio.AioRpcError as error:
                pytest.skip(f"containers cannot be started here: {error.details()}")
            assert await running[0].first_cpus() == wanted
            assert running[0].container in plugin.created
            # An update by another client is answered with the decided CPUs.
            async with RuntimeClient(runtime.cri) as client:
                await client.update(running[0].container, every)
            assert _cpus_of(running[0].container) == wanted
            # The runtime restarts: the plugin comes back by itself, and corrects what was decided meanwhile.
            await runtime.stop()
            pods.observe("LIST", [_pod_object("first", other)])
            await runtime.start()
            await _until_connected(plugin)
            running.append(await runtime.run("second", wanted))
            assert await running[1].first_cpus() == wanted
            assert _cpus_of(running[0].container) == other
        finally:
            connected.cancel()
            await asyncio.gather(connected, return_exceptions=True)
            for one in running:
                await runtime.remove(one)


async def _until_connected(plugin: NriPlugin) -> None:
    async with asyncio.timeout(20):
        while not plugin.connected:  # noqa: ASYNC110  (a flag without an event)
            await asyncio.sleep(0.02)


def _pod_object(name: str, cpuset: str) -> dict[str, Any]:
    annotations = {names.RESOURCE_STATUS: json.dumps({"cpuset": cpuset})}
    return {"metadata": {"namespace": "default", "name": name, "uid": f"uid-{name}", "annotations": annotations}}


def _cpus_of(container: str) -> str:
    """The CPUs that the container's first process may use now."""
    for folder in Path("/proc").iterdir():
        with suppress(OSError):
            if folder.name.isdigit() and container in (folder / "cgroup").read_text():
                return str(CpuSet.of(os.sched_getaffinity(int(folder.name))))
    raise AssertionError(f"no process of {container}")


def _beside(binary: str) -> str:
    return f"{Path(shutil.which(binary) or binary).parent}:{os.environ['PATH']}"


def _map(values: dict[str, str]) -> list[dict[int, Any]]:
    return [{1: key, 2: value} for key, value in values.items()]


def _encoded(message: dict[int, Any]) -> bytes:
    """A protobuf message by field numbers: CRI has hundreds of messages, of which the test needs a few fields."""
    return b"".join(_field(number, value) for number, value in message.items())


def _field(number: int, value: Any) -> bytes:
    if isinstance(value, list):
        return b"".join(_field(number, item) for item in value)
    if isinstance(value, int):
        return _varint(number << 3) + _varint(value)
    data = value.encode() if isinstance(value, str) else _encoded(value)
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def _varint(value: int) -> bytes:
    found = bytearray()
    while value > 127:
        found.append(value & 127 | 128)
        value >>= 7
    return bytes([*found, value])


def _write_image(path: Path) -> None:
    """An OCI image of the host's own ``sh``, ``cat`` and ``sleep`` with their libraries."""
    layer = io.BytesIO()
    with tarfile.open(fileobj=layer, mode="w") as tar:
        for name in ("bin", "out", "proc", "sys", "dev", "etc", "tmp"):
            folder = tarfile.TarInfo(name)
            folder.type, folder.mode = tarfile.DIRTYPE, 0o755
            tar.addfile(folder)
        for inside, source in dict(_files()).items():
            tar.add(source.resolve(), inside.lstrip("/"))
    config = {
        "architecture": "amd64" if os.uname().machine == "x86_64" else "arm64",
        "os": "linux",
        "config": {"Entrypoint": ["/bin/sleep", "100000"]},
        "rootfs": {"type": "layers", "diff_ids": [_digest(layer.getvalue())]},
    }
    blobs: list[bytes] = []

    def descriptor(kind: str, data: bytes, **more: Any) -> dict[str, Any]:
        blobs.append(data)
        media = f"application/vnd.oci.image.{kind}"
        return {"mediaType": media, "digest": _digest(data), "size": len(data), **more}

    manifest = {
        "schemaVersion": 2,
        "config": descriptor("config.v1+json", json.dumps(config).encode()),
        "layers": [descriptor("layer.v1.tar", layer.getvalue())],
    }
    tags = {"io.containerd.image.name": IMAGE, "org.opencontainers.image.ref.name": "1"}
    index = {
        "schemaVersion": 2,
        "manifests": [descriptor("manifest.v1+json", json.dumps(manifest).encode(), annotations=tags)],
    }
    with tarfile.open(path, "w") as tar:
        files = {f"blobs/sha256/{_digest(blob)[7:]}": blob for blob in blobs}
        files |= {"index.json": json.dumps(index).encode(), "oci-layout": b'{"imageLayoutVersion":"1.0.0"}'}
        for file, data in files.items():
            info = tarfile.TarInfo(file)
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))


def _files() -> Iterator[tuple[str, Path]]:
    for program in ("sh", "cat", "sleep"):
        source = Path(shutil.which(program) or f"/bin/{program}")
        yield f"/bin/{program}", source
        libraries = subprocess.run(["ldd", str(source.resolve())], capture_output=True, text=True, check=False).stdout
        for library in re.findall(r"(?:=> |^\s*)(/\S+) \(", libraries, re.MULTILINE):
            yield library, Path(library)


def _digest(data: bytes) -> str:
    return f"sha256:{hashlib.sha256(data).hexdigest()}"
