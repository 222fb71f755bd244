"""Nodes and pods of the fleet: real machines under every kubelet configuration, and what teams run on them."""

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from random import Random
from typing import Any, Final

from bench.figure import NotMeasurableError
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import DEFAULT_MAX_NUMA_NODES, KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.resources import CPU
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.machines import Hardware, NodeDescription, Style, load_descriptions

TOPOLOGIES: Final = Path(__file__).parents[3] / "shared" / "topologies"
GIB: Final = 1 << 30

MOST_THREADS: Final = 2
"""Of a core, on all architectures but POWER."""

POLICIES: Final = (
    KubeletPolicy.SINGLE_NUMA_NODE,
    KubeletPolicy.RESTRICTED,
    KubeletPolicy.BEST_EFFORT,
    KubeletPolicy.NONE,
)


@dataclass(frozen=True, slots=True)
class Template:
    """
    What the pods of one ReplicaSet ask for: CPUs and GiB of the app container, and of a sidecar and an init container where there are.

    ``share`` below 1 makes requests that share of the limits, so that the pod is Burstable. ``devices`` are limits of the app container.
    """

    name: str
    cpus: str
    gib: int
    init: tuple[str, int] | None = None
    sidecar: tuple[str, int] | None = None
    devices: dict[str, int] = field(default_factory=dict)
    share: bool = False

    def pod(self, name: str) -> dict[str, Any]:
        """A pod of this name."""
        owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": self.name, "uid": self.name, "controller": True}
        inits = []
        if self.init:
            inits.append(_container("prepare", *self.init))
        if self.sidecar:
            inits.append({**_container("proxy", *self.sidecar), "restartPolicy": "Always"})
        # Limits equal requests unless `share`: Guaranteed pods are those to which static managers give CPUs of their own.
        app = _container("app", self.cpus, self.gib, self.devices)
        if self.share:
            app["resources"]["limits"].pop("cpu")
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {"name": name, "namespace": "default", "ownerReferences": [owner]},
            "spec": {
                "schedulerName": "koord-numa",
                "containers": [app],
                **({"initContainers": inits} if inits else {}),
            },
        }


def _container(name: str, cpus: str, gib: int, devices: dict[str, int] | None = None) -> dict[str, Any]:
    amounts = {"cpu": cpus, "memory": f"{gib}Gi", **{key: str(value) for key, value in (devices or {}).items()}}
    return {"name": name, "image": "none", "resources": {"requests": dict(amounts), "limits": dict(amounts)}}


TEMPLATES: Final = (
    (30, Template("web", "1", 2)),
    (14, Template("api", "2", 4)),
    (12, Template("odd", "3", 4)),
    (8, Template("cache", "4", 8)),
    (6, Template("five", "5", 6)),
    (4, Template("database", "8", 16)),
    (2, Template("wide", "12", 12)),
    (6, Template("prepared", "4", 4, init=("2", 2))),
    (4, Template("migrated", "2", 4, init=("5", 4))),
    # Init containers, sidecars and odd CPU counts are where schedulers and kubelets count differently.
    (4, Template("proxied", "3", 4, sidecar=("1", 1))),
    (2, Template("both", "4", 4, init=("3", 2), sidecar=("1", 1))),
    (1, Template("training", "6", 8, devices={"nvidia.com/gpu": 1})),
    (7, Template("burst", "1500m", 2, share=True)),
)
"""How often each is drawn, in percent, and what it is."""


def nodes(count: int, dice: Random, *, published: bool = False) -> list[NodeDescription]:
    """
    So many nodes of the recorded machines, each with a kubelet configuration of its own; exporters publish options where ``published``.

    Raises ``NotMeasurableError`` where the machines are absent.
    """
    files = sorted(TOPOLOGIES.glob("*.json"))
    if not files:
        raise NotMeasurableError(f"no machines in {TOPOLOGIES}")
    machines = [load_descriptions(file)[0] for file in files]
    found = []
    for number in range(count):
        # In turn: 60 nodes have every recorded machine at least once.
        one = machines[number % len(machines)]
        hardware = _with_memory(one.hardware)
        config, reserved = _config(hardware, dice)
        found.append(
            NodeDescription(
                name=f"node-{number:02}-{one.name}"[:60].strip("-."),
                hardware=hardware,
                style=Style.KUBELET,
                kubelet=config,
                labels={"kubernetes.io/arch": _architecture(one.name, hardware)},
                reserved=reserved,
                hidden=not published,  # # names of nodes end at 63 characters
            )
        )
    return found


def _architecture(name: str, hardware: Hardware) -> str:
    """As the Node of such a machine names it."""
    # SMT-4 and SMT-8 exist on POWER only.
    threads = max(Counter(cpu.core for cpu in hardware.machine.cpus).values())
    if threads > MOST_THREADS:
        return "ppc64le"
    return "arm64" if any(word in name for word in ("arm", "kunpeng", "gb10")) else "amd64"


def _with_memory(hardware: Hardware) -> Hardware:
    """Some recordings do not say how much memory there is: 4 GiB a CPU then."""
    numa_bits = hardware.machine.numa_bits
    if any(hardware.memory.values()):
        return hardware
    return replace(hardware, memory={numa: 4 * GIB * bits.bit_count() for numa, bits in numa_bits.items()})


def _config(hardware: Hardware, dice: Random) -> tuple[KubeletConfig, CpuSet]:
    """A kubelet refuses to start with a policy on more NUMA nodes than it is told to allow, and without reserved CPUs."""
    machine = hardware.machine
    # topology_manager.go NewManager refuses more NUMA nodes than max-allowable-numa-nodes, except for policy none.
    many = len(machine.numa_ids) > DEFAULT_MAX_NUMA_NODES
    options = {
        name: True
        for name, share in (("full-pcpus-only", 0.27), ("distribute-cpus-across-numa", 0.05))
        if dice.random() < share
    }
    core = machine.cpus[0].core
    # Mostly a whole core, as administrators reserve; sometimes one thread, which leaves its sibling as an odd CPU.
    reserved = (
        CpuSet.of(cpu.id for cpu in machine.cpus if cpu.core == core)
        if dice.random() < 0.8
        else CpuSet.of((machine.cpus[0].id,))
    )
    config = KubeletConfig(
        topology_policy=KubeletPolicy.NONE if many else dice.choices(POLICIES, (5, 3, 2, 2))[0],
        topology_scope=dice.choice((KubeletScope.CONTAINER, KubeletScope.CONTAINER, KubeletScope.POD)),
        cpu_policy="static" if dice.random() < 0.9 else "none",
        cpu_options=options,
        memory_policy="Static" if not many and dice.random() < 0.5 else "None",
        reserved_cpus=reserved,
    )
    return config, reserved


def arrivals(
    count: int, found: list[NodeDescription], full: float, lifetime: float, dice: Random
) -> Iterator[tuple[float, Template, float]]:
    """
    Moments of creation, templates and lifetimes: so many that in the long run this share of all CPUs is asked for.

    ``lifetime`` is the mean in seconds; lifetimes are distributed exponentially.
    """
    weights = [weight for weight, _ in TEMPLATES]
    templates = [template for _, template in TEMPLATES]
    # Little's law: arrival rate = what is asked for on average / (CPUs of a pod * lifetime).
    each = sum(weight * _milli(template) for weight, template in TEMPLATES) / sum(weights)
    rate = full * sum(one.allocatable[CPU] for one in found) / each / lifetime
    now = 0.0
    for template in dice.choices(templates, weights, k=count):
        now += dice.expovariate(rate)
        yield now, template, dice.expovariate(1 / lifetime)


def _milli(template: Template) -> int:
    parts = [template.cpus, *(template.sidecar or ())[:1]]
    # # init containers end and are left out of the mean
    return sum(int(part.removesuffix("m")) * (1 if part.endswith("m") else 1000) for part in map(str, parts))
