"""Pods drawn for a node: those that come and go, and those that are only asked about, which lie near what is free."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from random import Random
from typing import Any, Final

JsonObject = dict[str, Any]

GIB: Final = 1 << 30
MIB: Final = 1 << 20

KINDS: Final = {"init": 9, "plain": 7, "two": 3, "inits": 2, "sidecar": 2, "fraction": 2, "burstable": 1, "reuse": 1}
"""Weights of the kinds of pods."""

OF_ONE_NUMA: Final = (0.3, 0.6, 0.95, 1.0, 1.0, 1.1, 1.3)
"""Parts of a NUMA node's memory that are asked for."""


def container(
    name: str, cpu: object, memory: str, devices: Mapping[str, int] | None = None, *, limits: bool = True
) -> JsonObject:
    """A container; without ``limits`` of a burstable pod, but for devices."""
    pieces = {resource: str(count) for resource, count in (devices or {}).items()}
    wanted = {"cpu": str(cpu), "memory": memory, **pieces} if cpu else pieces
    limited = wanted if limits and cpu else pieces
    return {"name": name, "resources": {"requests": wanted, **({"limits": dict(limited)} if limited else {})}}


@dataclass(frozen=True)
class Shapes:
    """Draws pod specs for one node. ``usual``: whole CPUs of an ordinary container."""

    dice: Random
    node: Mapping[str, Any]
    usual: float

    def template(self) -> JsonObject:
        """A pod that comes and goes."""
        dice = self.dice
        cpus = max(1, min(1 + int(dice.expovariate(1 / self.usual)), len(self.node["cpus"]) // 3))
        memory, devices = self._some_memory(), self._devices() if dice.random() < 1 / 4 else None
        what = dice.choices(("whole", "fraction", "burstable", "nothing"), (10, 4, 4, 1))[0]
        if what == "nothing":
            return {"containers": [container("a0", None, "", devices)]}
        if what == "burstable":
            cpu = dice.choice((cpus, "250m", "500m", "1500m"))
            return {"containers": [container("a0", cpu, memory, devices, limits=False)]}
        whole = what == "whole"
        apps = [container("a0", cpus if whole else dice.choice(("250m", "500m", "1500m")), memory, devices)]
        if whole and dice.random() < 1 / 6:
            apps.append(container("a1", max(1, cpus + dice.choice((-1, 0, 0, 1))), memory))
        if dice.random() < 1 / 7:
            apps.append(container("b0", "100m", "64Mi"))
        inits = [self._init(number, cpus, devices) for number in range(dice.choice((0, 0, 0, 1, 1, 2)))]
        if dice.random() < 1 / 10:
            sidecar = container("s0", dice.choice((1, 2, "250m")), "128Mi")
            inits.insert(dice.randint(0, len(inits)), {**sidecar, "restartPolicy": "Always"})
        return {"containers": apps, **({"initContainers": inits} if inits else {})}

    def _init(self, number: int, cpus: int, devices: Mapping[str, int] | None) -> JsonObject:
        dice = self.dice
        if number:
            return container(f"i{number}", dice.choice((1, 2)), "64Mi")
        cpu = dice.choice((cpus, cpus, cpus + 1, 2 * cpus, "250m", "500m", max(1, cpus // 2)))
        # No more than later ones need: else the kubelet chooses among them at random.
        reused = {next(iter(devices)): 1} if devices and dice.random() < 1 / 4 else None
        return container("i0", cpu, dice.choice(("64Mi", "64Mi", self._some_memory())), reused)

    def question(self, free: Sequence[Mapping[str, int]]) -> JsonObject:
        """A pod that is near what the zones have free."""
        dice = self.dice
        what = dice.choices([*KINDS], [*KINDS.values()])[0]
        cpus, memory = self._near_cpus(free), self._near_memory(free)
        devices = self._devices() if dice.random() < 1 / 4 else None
        if what == "fraction":
            return {"containers": [container("a0", "1500m", memory, devices)]}
        if what == "burstable":
            return {"containers": [container("a0", 2, memory, devices, limits=False)]}
        if what == "two":
            half = max(1, dice.choice((cpus, cpus // 2, cpus // 2)))
            apps = [container("a0", half, memory, devices), container("a1", half + dice.choice((0, 0, 1)), "64Mi")]
            return {"containers": apps}
        if what == "sidecar":
            side = dice.choice((1, 1, 2, 4))
            sidecar = {**container("s0", side, "64Mi"), "restartPolicy": "Always"}
            return {"initContainers": [sidecar], "containers": [container("a0", max(1, cpus - side), memory, devices)]}
        if what == "reuse" and (devices := self._devices()) is not None:
            first = container("i0", dice.choice((1, "250m")), "64Mi", dict.fromkeys(devices, 1))
            return {"initContainers": [first], "containers": [container("a0", dice.choice((1, 2)), "64Mi", devices)]}
        if what in ("init", "inits"):
            init, app = dice.choice(
                ((max(1, cpus // 2), cpus), (cpus, max(1, cpus // 2)), (dice.randint(1, 4), cpus), (cpus, cpus))
            )
            inits = [container("i0", init, "64Mi")]
            inits += [container("i1", dice.choice((1, 2)), "64Mi")] if what == "inits" else []
            return {"initContainers": inits, "containers": [container("a0", app, memory, devices)]}
        return {"containers": [container("a0", dice.choice((1, cpus, cpus)), memory, devices)]}

    def _near_cpus(self, free: Sequence[Mapping[str, int]]) -> int:
        each = len(self.node["cpus"]) // len(free)
        there = [zone.get("cpu", each) for zone in free]
        some = self.dice.choice(
            (*there, max(there), min(there), each, sum(self.dice.sample(there, min(2, len(there)))))
        )
        return max(1, some + self.dice.choice((-2, -1, 0, 0, 0, 1, 1, 2)))

    def _near_memory(self, free: Sequence[Mapping[str, int]]) -> str:
        dice = self.dice
        if dice.random() < 3 / 4:
            return dice.choice(("64Mi", "64Mi", "128Mi", "256Mi"))
        there = [zone["memory"] for zone in free if "memory" in zone] or [*self.node["memory"]]
        some = dice.choice((max(there), dice.choice(there), self.node["memory"][0]))
        return f"{max(64, int(some * dice.choice(OF_ONE_NUMA)) // MIB)}Mi"

    def _some_memory(self) -> str:
        part = self.dice.choice((0.005, 0.01, 0.02, 0.05, 0.1, 0.15)) * self.dice.uniform(0.5, 1.5)
        amount = int(self.node["memory"][0] * part)
        return f"{amount // GIB}Gi" if amount >= 2 * GIB else f"{max(64, amount // MIB)}Mi"

    def _devices(self) -> dict[str, int] | None:
        pools = self.node["devices"]
        if not pools:
            return None
        name = self.dice.choice(sorted(pools))
        return {name: min(len(pools[name]), self.dice.choice((1, 1, 1, 2, 2, 4)))}
