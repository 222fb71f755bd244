"""Pods of all shapes for one node, drawn from a seed: what they ask for is about what its NUMA nodes have."""

from random import Random
from typing import Any, Final

from koord_numa.sandbox.machines import NodeDescription
from tests.kubelets.strategies import GIB, GPU

JsonObject = dict[str, Any]


SIZES: Final = (
    ("little", "little", "half", "most"),
    ("little", "half", "most", "wide"),
    ("half", "most", "most"),
    ("little", "wide", "wide"),
    ("half", "half", "wide"),
)
"""Sizes of the containers of one life, relative to a NUMA node."""


class PodShapes:
    """Draws specs for one node."""

    def __init__(self, random: Random, node: NodeDescription) -> None:
        machine = node.hardware.machine
        self._random = random
        self._numa = len(machine.numa_ids)
        self._cpus = len(machine.cpus) // self._numa
        self._gib = max(1, node.hardware.memory[machine.numa_ids[0]] // GIB)
        self._gpus = len(node.hardware.devices)
        self._pages = sum(node.hardware.pages[machine.numa_ids[0]].values()) if node.hardware.pages else 0
        self._sizes = random.choice(SIZES)
        self._inits = random.choice((0.0, 0.2, 0.6))
        self._more = random.choice((0.0, 0.2, 0.5))

    def specs(self) -> list[JsonObject]:
        """The specs of a few pods."""
        return [self.spec() for _ in range(self._random.randint(3, 7))]

    def spec(self) -> JsonObject:
        """The spec of a pod: Guaranteed mostly, with init containers and sidecars now and then."""
        random = self._random
        apps = [self._container("app", 1.0)]
        while len(apps) < 3 and random.random() < self._more:
            apps.append(self._container(f"more{len(apps)}", 0.5))
        inits: list[JsonObject] = []
        while len(inits) < 3 and random.random() < self._inits:
            kind = random.choice(("init", "init", "sidecar"))
            one = self._container(f"{kind}{len(inits)}", random.choice((0.5, 1.0)))
            inits.append({**one, "restartPolicy": "Always"} if kind == "sidecar" else one)
        if random.random() < 0.05:
            apps[0]["resources"]["requests"]["cpu"] = "500m"  # no longer Guaranteed
        if random.random() < 0.03:
            apps[0]["resources"] = {}
        return {"containers": apps, **({"initContainers": inits} if inits else {})}

    def _container(self, name: str, share: float) -> JsonObject:
        amounts = {"cpu": self._cpu(share), "memory": f"{self._memory(share)}Gi"}
        if self._gpus and self._random.random() < 0.3:
            amounts[GPU] = str(self._random.randint(1, max(1, min(3, self._gpus))))
        if self._pages and self._random.random() < 0.4:
            most = self._pages * (2 if "wide" in self._sizes else 1)
            amounts["hugepages-1Gi"] = f"{self._random.randint(1, most)}Gi"
        return {"name": name, "resources": {"requests": dict(amounts), "limits": dict(amounts)}}

    def _cpu(self, share: float) -> str:
        random = self._random
        if random.random() < 0.05:
            return random.choice(("500m", "1500m"))
        return str(self._size(self._cpus, share))

    def _memory(self, share: float) -> int:
        return self._size(self._gib, share) if self._random.random() < 0.4 else self._random.randint(1, 2)

    def _size(self, here: int, share: float) -> int:
        """Return an amount of a resource of which a NUMA node has ``here``: little, about half, nearly all, or more."""
        random = self._random
        kind = random.choice(self._sizes)
        if kind == "wide" and self._numa > 1:
            drawn = random.randint(here, here * random.choice((2, 2, self._numa)))
        elif kind == "most":
            drawn = random.randint(max(1, here - 3), here)
        else:
            drawn = random.randint(1, max(1, here // (2 if kind == "half" else 4)))
        return max(1, int(drawn * share))
