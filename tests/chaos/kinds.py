"""Objects of a chaotic cluster: machines with and without devices and huge pages, and pods that request them."""

from collections.abc import Callable
from random import Random
from typing import Final

from tests.e2e.world import KUBELET_PAIR, PAIR, JsonObject, pinned, shared

GPU: Final = "nvidia.com/gpu"
PAGES: Final = {"2Mi": 512, "1Gi": 2}
"""Of each NUMA node: 1 Gi in small pages, 2 Gi in gigantic ones."""

MACHINES: Final = {
    "machines": [
        {"name": "pair", "count": 6, **PAIR},
        {
            "name": "quad",
            "count": 4,
            "sockets": 1,
            "numa": 4,
            "cores": 4,
            "threads": 2,
            "memory": "16Gi",
            "hugepages": PAGES,
            "devices": {GPU: [0, 1, 2, 3]},
        },
        {
            "name": "arm",
            "count": 4,
            "sockets": 1,
            "numa": 2,
            "cores": 16,
            "threads": 1,
            "memory": "64Gi",
            "hugepages": PAGES,
            "devices": {GPU: [0, 0, 1]},
        },
        {
            "name": "kubelet",
            "count": 4,
            **KUBELET_PAIR,
            "hugepages": PAGES,
            "devices": {GPU: [0, 1, 1]},
        },
        {
            "name": "wide",
            "count": 2,
            **KUBELET_PAIR,
            "hugepages": PAGES,
            "devices": {GPU: [0, 0, 1, 1]},
            "kubelet": {"topologyPolicy": "restricted", "topologyScope": "pod"},
            "hidden": True,
        },
    ]
}
"""Twenty nodes of five kinds; exporters tell of the last kind only what today's exporters tell."""

TOO_MANY: Final = 500
"""So many CPUs no machine has."""


def any_pod(name: str, dice: Random) -> tuple[JsonObject, int]:
    """A pod of some kind, and the milli-CPU that it asks for."""
    if dice.random() < 0.01:
        return pinned(name, TOO_MANY), 0  # fits nowhere, ever
    make = dice.choices([kind for kind, _ in KINDS], [weight for _, weight in KINDS])[0]
    return make(name, dice)


def owner_of_cpus(name: str, dice: Random) -> tuple[JsonObject, int]:
    """CPUs of its own, aligned or not."""
    cpus = dice.choice((1, 1, 2, 2, 4))
    qos, policy = dice.choice((("LSR", ""), ("LSR", "SingleNUMANode"), ("LSE", "")))
    return pinned(name, cpus, qos=qos, policy=policy), cpus * 1000


def sharer(name: str, dice: Random) -> tuple[JsonObject, int]:
    """Somewhere in a shared pool."""
    amount = dice.choice((250, 500, 1000))
    return shared(name, f"{amount}m"), amount


def sharer_with_a_device(name: str, dice: Random) -> tuple[JsonObject, int]:
    """Its device may be anywhere on the node."""
    return wanting(shared(name, "250m"), {GPU: "1"}), 250


def aligned_with_devices(name: str, dice: Random) -> tuple[JsonObject, int]:
    """CPUs and devices of its own."""
    return _special(name, dice, {GPU: dice.choice("1112")})


def with_small_pages(name: str, dice: Random) -> tuple[JsonObject, int]:
    """Half of a NUMA node's small pages, or more than one NUMA node has."""
    return _special(name, dice, {"hugepages-2Mi": dice.choice(("128Mi", "256Mi", "512Mi", "1536Mi"))})


def with_gigantic_pages(name: str, dice: Random) -> tuple[JsonObject, int]:
    """One or all of a NUMA node's gigantic pages."""
    return _special(name, dice, {"hugepages-1Gi": dice.choice(("1Gi", "1Gi", "2Gi"))})


def with_everything(name: str, dice: Random) -> tuple[JsonObject, int]:
    """Devices and pages of both sizes."""
    return _special(name, dice, {GPU: "1", "hugepages-2Mi": "256Mi", "hugepages-1Gi": "1Gi"})


def wanting(pod: JsonObject, more: dict[str, str]) -> JsonObject:
    """The pod with more limits, and the same requests."""
    for container in pod["spec"].get("initContainers", []) + pod["spec"]["containers"]:
        resources = container["resources"]
        resources["requests"] = {**resources["requests"], **more}
        resources["limits"] = {**resources.get("limits", {}), **more}
    return pod


def _special(name: str, dice: Random, more: dict[str, str]) -> tuple[JsonObject, int]:
    cpus = dice.choice((1, 2))
    pod = pinned(name, cpus, policy=dice.choice(("", "BestEffort", "Restricted", "SingleNUMANode")))
    if dice.random() < 0.15:
        [container] = pod["spec"]["containers"]
        pod["spec"]["initContainers"] = [{**container, "name": "init", "resources": dict(container["resources"])}]
    return wanting(pod, more), cpus * 1000


KINDS: Final[tuple[tuple[Callable[[str, Random], tuple[JsonObject, int]], int], ...]] = (
    (owner_of_cpus, 40),
    (sharer, 25),
    (sharer_with_a_device, 5),
    (aligned_with_devices, 10),
    (with_small_pages, 8),
    (with_gigantic_pages, 8),
    (with_everything, 4),
)
"""The kinds of hostile objects with their weights."""
