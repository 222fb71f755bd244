"""Machines with devices, what pods hold of them and what pods ask for, in few words."""

from collections.abc import Mapping
from typing import Any

from koord_numa.core.devices import NodeDeviceHints, Shortage, device_machine, device_offer, node_devices
from koord_numa.core.devices.machine import DeviceMachine, normal_form
from koord_numa.core.objects.devices import (
    DeviceGrant,
    DeviceGrants,
    DeviceInventory,
    DeviceSpec,
    DeviceTopology,
    NodeDevice,
    VirtualFunction,
)
from koord_numa.core.objects.request import Container, PodKey, PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from koord_numa.core.state.ledger import Holding, Ledger

GIB = 1 << 30
KOORD = "koordinator.sh/"
GPU_AMOUNTS = ((f"{KOORD}gpu-core", 100), (f"{KOORD}gpu-memory", 80 * GIB), (f"{KOORD}gpu-memory-ratio", 100))
EIGHT = "0a 0a 0b 0b 1c 1c 1d 1d"
"""Eight GPUs on four PCIe switches of two NUMA nodes."""


def inventory(gpus: str = EIGHT, nics: str = "0a 0b 1c 1d", fpgas: str = "", **fields: Any) -> DeviceInventory:
    """A Device object. A device is ``<NUMA><switch>``: ``0a``; ``-a`` belongs to no NUMA node, ``?`` has no topology, ``0a!`` is unhealthy.

    NICs have two virtual functions each: the first of the group ``fast``, the second of the group ``slow``.
    """
    devices = [
        *_devices("fpga", fpgas, ((f"{KOORD}fpga", 100),)),
        *_devices("gpu", gpus, GPU_AMOUNTS),
        *_devices("rdma", nics, ((f"{KOORD}rdma", 100),)),
    ]
    ids = {device.key: f"{device.type}-{device.minor}" for device in devices}
    return DeviceInventory("worker", tuple(devices), ids, **fields)


def _devices(kind: str, words: str, amounts: tuple[tuple[str, int], ...]) -> list[NodeDevice]:
    return [
        NodeDevice(
            kind,
            minor,
            amounts,
            _topology(word.rstrip("!")),
            healthy=not word.endswith("!"),
            labels=(("model", "even" if minor % 2 == 0 else "odd"),),
            functions=_functions(minor) if kind == "rdma" else (),
        )
        for minor, word in enumerate(words.split())
    ]


def _topology(word: str) -> DeviceTopology | None:
    if word == "?":
        return None
    return DeviceTopology(None if word[0] == "-" else int(word[0]), word[1:])


def _functions(minor: int) -> tuple[VirtualFunction, ...]:
    return tuple(
        VirtualFunction(f"0000:{minor:02x}:00.{number}", number, (("group", group),))
        for number, group in ((1, "fast"), (2, "slow"))
    )


def machine(gpus: str = EIGHT, nics: str = "0a 0b 1c 1d", fpgas: str = "", **fields: Any) -> DeviceMachine:
    """The machine of ``inventory``."""
    return device_machine(inventory(gpus, nics, fpgas, **fields))


def held(use: str) -> DeviceGrants:
    """
    Parse a pod's holdings: ``gpu0`` (all of it), ``gpu1:50`` (percent), ``rdma0:1``, ``rdma0:1@0000:00:00.1`` (with a virtual function).
    """
    return tuple(_grant(word) for word in use.split())


def _grant(word: str) -> DeviceGrant:
    name, _, function = word.partition("@")
    device, _, share = name.partition(":")
    kind = device.rstrip("0123456789")
    amount = int(share or 100)
    names = ("gpu-core", "gpu-memory-ratio") if kind == "gpu" else (kind,)
    amounts = {f"{KOORD}{each}": amount for each in names}
    return DeviceGrant(kind, int(device[len(kind) :]), amounts, (VirtualFunction(function),) if function else ())


def ledger(*pods: str, requests: Mapping[int, PodRequest] | None = None) -> Ledger:
    """A ledger of pods that hold these devices."""
    return Ledger.of(
        Holding(
            PodKey("default", f"pod-{number}", f"uid-{number}"),
            {},
            request=(requests or {}).get(number),
            devices=held(use),
        )
        for number, use in enumerate(pods)
    )


def request(amounts: Mapping[str, int], spec: DeviceSpec | None = None) -> PodRequest:
    """A pod of one container. Names without a slash are Koordinator's."""
    full = {name if "/" in name or name in ("cpu", "memory") else KOORD + name: it for name, it in amounts.items()}
    container = Container("app", ContainerKind.APP, full, full)
    return PodRequest(containers=(container,), devices=spec or DeviceSpec())


def choose(
    pod: PodRequest, there: DeviceInventory, *pods: str, numa: int = 0, labels: Mapping[str, str] | None = None
) -> str:
    """Return the pod's devices on the machine beside these pods, ``gpu0 gpu1 rdma0``, or Koordinator's message."""
    hints = provider(pod, there, *pods, labels=labels)
    found = hints.at(numa)
    if isinstance(found, Shortage):
        return found.message
    return " ".join(f"{grant.type}{grant.minor}" for grant in hints.grants(found))


def provider(
    pod: PodRequest, there: DeviceInventory, *pods: str, labels: Mapping[str, str] | None = None
) -> NodeDeviceHints:
    """The hint provider for a pod on the machine."""
    offer = device_offer(
        there,
        "",
        held=False,
        model=(labels or {}).get("node.koordinator.sh/gpu-model", ""),
        honors_partitions=(labels or {}).get("node.koordinator.sh/gpu-partition-policy") == "Honor",
    )
    found = node_devices(pod, offer, ledger(*pods))
    assert isinstance(found, NodeDeviceHints), found
    return found


__all__ = ["choose", "held", "inventory", "ledger", "machine", "normal_form", "provider", "request"]
