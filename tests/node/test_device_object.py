"""The Device object of a node without koordlet: devices from sysfs and procfs as the kernel writes them, holders from the kubelet."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson
import pytest

from koord_numa.core.devices import UNUSED, device_offer
from koord_numa.core.objects.request import PodKey
from koord_numa.core.state.ledger import Holding, Ledger
from koord_numa.node.podresources import HeldResources, PodHoldings, PodResources
from koord_numa.node.published_objects import DeviceSource, UnknownDevicesError, device_object, read_devices
from koord_numa.node.publisher import FIELD_MANAGER
from koord_numa.node.sysfs import Host, Sysfs, read_pci
from koord_numa.sandbox.machines.description import KoordletDevices, described_devices
from koord_numa.wire.devices import parse_devices
from tests.core.devices.rack import held
from tests.node.descriptions import STATIC
from tests.node.nodes import CRDS, NODE, world
from tests.sandbox.machines.pods import bind, create

DEVICES = "devices.scheduling.koordinator.sh"
NVIDIA = "nvidia.com/gpu"
UUIDS = ("GPU-5a0b1c2d-aaaa-bbbb-cccc-000000000000", "GPU-5a0b1c2d-aaaa-bbbb-cccc-000000000001")


class Tree:
    """``/sys`` and ``/proc`` of a server: on each of two NUMA nodes a PCIe switch with a GPU and a NIC with two functions."""

    def __init__(self, folder: Path) -> None:
        self.sys, self.proc = folder / "sys", folder / "proc"
        self.real: dict[str, Path] = {}
        for numa, root in enumerate(("pci0000:00", "pci0000:80")):
            bus = f"{'8' if numa else '0'}"
            switch = f"{root}/0000:{bus}0:01.0/0000:{bus}1:00.0"
            gpu = self.add(f"0000:{bus}7:00.0", f"{switch}/0000:{bus}2:00.0", "0x030200", numa)
            self.driver(gpu, UUIDS[numa], numa)
            nic = self.add(f"0000:{bus}c:00.0", f"{switch}/0000:{bus}2:08.0", "0x020700" if numa else "0x020000", numa)
            self.put(self.real[nic] / "infiniband" / f"mlx5_{numa}" / "ports" / "1" / "state", "4: ACTIVE")
            for number in (1, 2):
                function = self.add(f"0000:{bus}c:00.{number}", f"{switch}/0000:{bus}2:08.0", "0x020000", numa)
                (self.real[nic] / f"virtfn{number - 1}").symlink_to(f"../{function}")
                (self.real[function] / "physfn").symlink_to(f"../{nic}")
                self.put(self.real[function] / "infiniband" / f"mlx5_{numa}{number}" / "node_type", "1: CA")
        self.add("0000:03:00.0", "pci0000:00/0000:00:1c.0", "0x030000", 0)  # the BMC's display
        self.add("0000:04:00.0", "pci0000:00/0000:00:1d.0", "0x010802", 0)
        self.add("0000:05:00.0", "pci0000:00/0000:00:1e.0", "0x020000", -1)  # a NIC without RDMA

    def add(self, address: str, parent: str, kind: str, numa: int) -> str:
        """A PCI device below its bridges, linked as the kernel links it."""
        here = self.real[address] = self.sys / "devices" / parent / address
        self.put(here / "class", kind)
        self.put(here / "numa_node", str(numa))
        links = self.sys / "bus" / "pci" / "devices"
        links.mkdir(parents=True, exist_ok=True)
        (links / address).symlink_to(f"../../../devices/{parent}/{address}")
        return address

    def driver(self, address: str, uuid: str, minor: int, model: str = "NVIDIA H100 80GB HBM3") -> None:
        """Return the NVIDIA driver's data of a GPU."""
        lines = (f"Model: \t\t {model}", "IRQ:   \t\t 88", f"GPU UUID: \t {uuid}", f"Device Minor: \t {minor}")
        self.put(self.proc / "driver" / "nvidia" / "gpus" / address / "information", "\n".join(lines))

    def put(self, path: Path, text: str) -> None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")

    def object(self, resources: PodResources) -> dict[str, Any]:
        return device_object(NODE, "uid-n0", read_devices(self.sys, read_pci(Sysfs(self.sys))), resources)


def kubelet(
    offered: Mapping[str, tuple[str, ...]] | None = None, **pods: Mapping[str, tuple[str, ...]]
) -> PodResources:
    """Podresources: the device ids that plugins offer, and those of each pod, by resource."""
    holdings = tuple(
        PodHoldings("default", name, (HeldResources("c", devices={r: frozenset(ids) for r, ids in by.items()}),))
        for name, by in sorted(pods.items())
    )
    everything: dict[str, frozenset[str]] = {}
    for by in pods.values():
        everything |= {resource: everything.get(resource, frozenset()) | set(ids) for resource, ids in by.items()}
    devices = {resource: dict.fromkeys(ids, frozenset({0})) for resource, ids in (offered or {NVIDIA: UUIDS}).items()}
    return PodResources(pods=holdings, devices=devices, held_devices=everything)


def text(obj: dict[str, Any]) -> str:
    """The devices in one line: type, minor, NUMA node, PCIe root, functions and health."""
    return ", ".join(
        f"{it['type']}{it['minor']} {it['topology']['nodeID']}@{it['topology']['pcieID'][-2:]}"
        + (f"+{sum(len(group['vfs']) for group in it['vfGroups'])}" if "vfGroups" in it else "")
        + ("" if it["health"] else "!")
        for it in obj["spec"]["devices"]
    )


NICS = "rdma0 0@00+2, rdma1 1@80+2"
GPUS = "gpu0 0@00, gpu1 1@80"


@pytest.mark.parametrize(
    ("resources", "devices", "holders"),
    [
        pytest.param(kubelet(), f"{GPUS}, {NICS}", "", id="free"),
        pytest.param(kubelet(a={NVIDIA: UUIDS[1:]}), f"{GPUS}, {NICS}", "default/a gpu1", id="GPU held"),
        pytest.param(
            kubelet({NVIDIA: UUIDS[:1]}, a={NVIDIA: UUIDS[1:]}),
            f"gpu0 0@00, gpu1 1@80!, {NICS}",
            "default/a gpu1",
            id="GPU withdrawn by its plugin while a pod holds it",
        ),
        pytest.param(kubelet({NVIDIA: UUIDS[1:]}), f"gpu0 0@00!, gpu1 1@80, {NICS}", "", id="GPU withdrawn"),
        pytest.param(
            kubelet({"amd.com/gpu": ("0000:07:00.0", "0000:87:00.0")}, a={"amd.com/gpu": ("0000:87:00.0",)}),
            f"{GPUS}, {NICS}",
            "default/a gpu1",
            id="GPUs by address",
        ),
        pytest.param(kubelet({"example.com/x": ("x",)}), NICS, "", id="no plugin for GPUs"),
        pytest.param(
            kubelet(a={"example.com/nic": ("0000:0c:00.0",)}), f"{GPUS}, {NICS}", "default/a rdma0", id="NIC held"
        ),
        pytest.param(
            kubelet(a={"example.com/vf": ("0000:8c:00.2",), NVIDIA: UUIDS[:1]}),
            f"{GPUS}, {NICS}",
            "default/a gpu0 rdma1:0000:8c:00.2",
            id="virtual function and GPU held",
        ),
        pytest.param(
            kubelet(a={"example.com/vf": ("unknown",)}), f"{GPUS}, {NICS}", "", id="devices that are not published"
        ),
    ],
)
def test_devices_and_holders(tmp_path: Path, resources: PodResources, devices: str, holders: str) -> None:
    obj = Tree(tmp_path).object(resources)
    assert text(obj) == devices
    listed = orjson.loads(obj["metadata"]["annotations"]["koord-numa/held-devices"])
    words = []
    for pod, kinds in listed.items():
        words.append(pod)
        for kind, entries in kinds.items():
            for entry in entries:
                functions = [it["busID"] for it in entry.get("extension", {}).get("vfs", ())]
                words.append(":".join((f"{kind}{entry['minor']}", *functions)))
    assert " ".join(words) == holders
    inventory = parse_devices(obj)
    assert inventory.problem == ""
    assert not inventory.injected
    assert len(inventory.devices) == len(obj["spec"]["devices"])


@pytest.mark.parametrize(
    "resources",
    [
        pytest.param(kubelet({NVIDIA: ("MIG-1d3f",)}), id="MIG"),
        pytest.param(kubelet({NVIDIA: (f"{UUIDS[0]}::0", f"{UUIDS[0]}::1")}), id="time slices"),
        pytest.param(kubelet(a={NVIDIA: ("GPU-gone",)}), id="held and unknown"),
    ],
)
def test_gpus_that_cannot_be_attributed_are_not_published(tmp_path: Path, resources: PodResources) -> None:
    with pytest.raises(UnknownDevicesError):
        Tree(tmp_path).object(resources)


def test_a_driver_that_has_not_initialized_its_gpus(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.driver("0000:07:00.0", "GPU-????????-????-????-????-????????????", 0)
    with pytest.raises(UnknownDevicesError, match=UUIDS[0]):
        tree.object(kubelet())


def test_ports_that_are_down_and_models(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    tree.put(tree.real["0000:0c:00.0"] / "infiniband" / "mlx5_0" / "ports" / "1" / "state", "1: DOWN")
    obj = tree.object(kubelet())
    assert text(obj) == f"{GPUS}, rdma0 0@00+2!, rdma1 1@80+2"
    assert obj["metadata"]["labels"]["node.koordinator.sh/gpu-model"] == "NVIDIA-H100-80GB-HBM3"
    tree.driver("0000:87:00.0", UUIDS[1], 1, "NVIDIA A30")
    assert "node.koordinator.sh/gpu-model" not in tree.object(kubelet())["metadata"]["labels"]


def test_what_a_kubelet_reports_replaces_the_annotation(tmp_path: Path) -> None:
    """A pod of the ledger holds what its kubelet gave it. The annotation counts until the kubelet has reported the pod."""
    tree = Tree(tmp_path)

    def use(resources: PodResources, *pods: Holding) -> str:
        offer = device_offer(parse_devices(tree.object(resources)), "", held=False)
        assert offer is not None
        ledger = Ledger.of(pods)
        found = " ".join(f"{usage.type}{usage.minor}" for usage in offer.use(ledger).usages)
        assert offer.conflict(ledger) == ""
        for pod in pods:
            ledger.release(pod.pod.uid)
        assert offer.use(ledger) is UNUSED, "as preemption sees the node without the pods"
        return found

    mine = Holding(PodKey("default", "a", "1"), {}, devices=held("gpu0"))
    theirs = Holding(PodKey("default", "b", "2"), {})
    assert use(kubelet(), mine, theirs) == "gpu0"
    assert use(kubelet(a={NVIDIA: UUIDS[1:]}), mine, theirs) == "gpu1"
    assert use(kubelet(b={NVIDIA: UUIDS[1:]}), mine, theirs) == "gpu0 gpu1"
    assert use(kubelet(b={NVIDIA: UUIDS[:1]}), mine, theirs) == "gpu0"
    assert use(kubelet(b={NVIDIA: UUIDS[:1]}), mine) == "gpu0", "the API server has no such pod any more"


async def test_the_agent_publishes_its_own_object_only(tmp_path: Path) -> None:
    optional = CRDS[0].parent / "optional" / "devices-koordinator.yaml"
    async with world(tmp_path, STATIC, crds=(*CRDS, optional)) as around:
        store = around.server.store
        async with around.agent() as silent:
            await around.publish(silent)
            assert store.find(DEVICES, NODE) is None, "off by default"
        async with around.agent(devices=True) as agent:
            await around.publish(agent)
            obj = store.get(DEVICES, NODE)
            assert text(obj) == "gpu0 0@00, gpu1 1@00"
            pod = create(store, "a", {"cpu": "1", "memory": "1Gi", NVIDIA: "1"})
            bind(store, pod, NODE)
            await around.publish(agent)
            ((name, grants),) = parse_devices(store.get(DEVICES, NODE)).held
            assert (name, [grant.key for grant in grants]) == ("default/a", [("gpu", 0)])
            assert agent.device_publisher is not None
            writes = agent.device_publisher.writes
            await around.publish(agent)
            assert agent.device_publisher.writes == writes, "nothing changed"
            # Koordinator is installed: its koordlet owns the object from now on.
            theirs = KoordletDevices(NODE, described_devices({"gpu": ["0a"]})).object("uid")
            store.delete(DEVICES, NODE)
            store.apply(theirs)
            around.clock.now += 100
            await around.publish(agent)
            managers = {entry.get("manager") for entry in store.get(DEVICES, NODE)["metadata"].get("managedFields", ())}
            assert FIELD_MANAGER not in managers
            assert len(store.get(DEVICES, NODE)["spec"]["devices"]) == 1


def test_a_tree_that_cannot_be_read_is_no_error_of_the_agent(tmp_path: Path) -> None:
    tree = Tree(tmp_path)
    source = DeviceSource(tree.sys, lambda: 0.0)
    state = tree.real["0000:0c:00.0"] / "infiniband" / "mlx5_0" / "ports" / "1" / "state"
    state.write_bytes(b"\xff\n")
    host = Host(cpus=(), numa=(), pci=read_pci(Sysfs(tree.sys)))
    assert source.object(NODE, "", host, kubelet()) is None
    state.write_text("4: ACTIVE\n")
    assert source.object(NODE, "", host, kubelet()) is not None
