"""Hypothesis strategies: kubelet-owned nodes of every configuration, pods that fit on them, and orders in which things happen."""

from typing import Any, Final

from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.sandbox.machines import NodeDescription, Numbering, Shape, Style

GIB: Final = 1 << 30
GPU: Final = "vendor.example/gpu"

SHAPES: Final = ((2, 1, 4, 2), (1, 1, 4, 2), (2, 2, 3, 2), (2, 1, 8, 1), (1, 2, 2, 4), (1, 4, 4, 1), (2, 2, 4, 2))
"""Sockets, NUMA nodes a socket, cores a NUMA node, threads a core: small, so that pods are in one another's way."""

PAGES: Final = {"1Gi": 2}
"""Huge pages of each NUMA node."""

MOST_THREADS: Final = 2
"""Of a core, on all architectures but POWER."""

OPTIONS: Final = ("full-pcpus-only", "distribute-cpus-across-numa", "align-by-socket", "strict-cpu-reservation")
ACTIONS: Final = (
    "place",
    "place",
    "place",
    "place",
    "admit",
    "admit",
    "admit",
    "end",
    "end",
    "hear",
    "hear",
    "scan",
    "deliver",
    "wait",
    "restart",
    "lie",
)

Action = tuple[str, int]


@st.composite
def nodes(draw: st.DrawFn) -> NodeDescription:
    """A node whose kubelet would start with its configuration."""
    sockets, numa, cores, threads = draw(st.sampled_from(SHAPES))
    gpus = draw(st.lists(st.integers(0, sockets * numa - 1), max_size=4))
    shape = Shape(
        sockets,
        numa,
        cores,
        threads,
        16 * GIB,
        draw(st.sampled_from(list(Numbering))),
        devices={GPU: tuple(gpus)} if gpus else {},
        pages=PAGES if draw(st.booleans()) else {},
    )
    hardware = shape.build()
    policy = draw(st.sampled_from(list(KubeletPolicy)))
    options = draw(st.sets(st.sampled_from(OPTIONS), max_size=2))
    if "align-by-socket" in options and policy is KubeletPolicy.SINGLE_NUMA_NODE:
        options -= {"align-by-socket"}  # such a kubelet does not start (ValidateStaticPolicyOptions)
    reserved = CpuSet.of(draw(st.sets(st.integers(0, len(hardware.machine.cpus) - 1), min_size=1, max_size=2)))
    closest = draw(st.booleans())
    config = KubeletConfig(
        topology_policy=policy,
        topology_scope=draw(st.sampled_from(list(KubeletScope))),
        topology_options={"prefer-closest-numa-nodes": True} if closest else {},
        cpu_policy=draw(st.sampled_from(("static", "static", "static", "none"))),
        cpu_options=dict.fromkeys(sorted(options), True),
        memory_policy=draw(st.sampled_from(("None", "Static"))),
        reserved_cpus=reserved,
    )
    return NodeDescription(
        name="n",
        hardware=hardware,
        style=Style.KUBELET,
        kubelet=config,
        labels={"kubernetes.io/arch": "ppc64le"} if threads > MOST_THREADS else {},
        reserved=reserved,
        hidden=draw(st.booleans()),
    )


@st.composite
def specs(draw: st.DrawFn) -> dict[str, Any]:
    """The spec of a pod: Guaranteed mostly, with init containers and sidecars now and then."""
    devices = draw(st.sampled_from((0, 0, 0, 0, 0, 0, 1, 2)))
    app = container(
        "app", draw(st.integers(1, 6) | st.integers(1, 12)), draw(st.integers(1, 8) | st.integers(1, 24)), devices
    )
    if pages := draw(st.sampled_from((0, 0, 0, 0, 1, 2))):
        for amounts in app["resources"].values():
            amounts["hugepages-1Gi"] = f"{pages}Gi"
    if draw(st.integers(0, 9)) == 0:
        app["resources"]["requests"]["cpu"] = "500m"
    inits = []
    for number, kind in enumerate(draw(st.lists(st.sampled_from(("init", "sidecar")), max_size=2))):
        one = container(f"{kind}{number}", draw(st.integers(1, 5)), draw(st.integers(1, 6)))
        inits.append({**one, "restartPolicy": "Always"} if kind == "sidecar" else one)
    more = [container("more", draw(st.integers(1, 4)), 1)] if draw(st.integers(0, 4)) == 0 else []
    return {"containers": [app, *more], **({"initContainers": inits} if inits else {})}


def actions(most: int = 90) -> st.SearchStrategy[list[Action]]:
    """Actions with a number that selects a pod or a duration."""
    return st.lists(st.tuples(st.sampled_from(ACTIONS), st.integers(0, 7)), min_size=most // 3, max_size=most)


def container(name: str, cpus: int, gib: int, devices: int = 0) -> dict[str, Any]:
    """A container with these CPUs, memory and GPUs, limits equal to requests."""
    amounts = {"cpu": str(cpus), "memory": f"{gib}Gi", **({GPU: str(devices)} if devices else {})}
    return {"name": name, "resources": {"requests": dict(amounts), "limits": dict(amounts)}}
