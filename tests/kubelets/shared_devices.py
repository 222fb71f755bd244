"""Nodes whose devices are near any NUMA nodes, as exporters show them: drawn at random, and lived on like any other."""

from typing import Any, Final

from hypothesis import strategies as st

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.state import DevicePool, KubeletState, PluginDevice
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy, KubeletScope
from koord_numa.core.value_objects import replace
from koord_numa.sandbox.machines import NodeDescription, Shape, Style
from tests.kubelets.node_life import NodeLife
from tests.kubelets.strategies import GIB, GPU, container

FINGERPRINT: Final = "nodeTopologyPodsFingerprint"
METHOD: Final = "nodeTopologyPodsFingerprintMethod"


class SharedLife(NodeLife):
    """
    ``wiring`` is what each GPU is near, as a mask; ``in_full`` says in which way an exporter counts, and
    ``fingerprint`` whether it tells of which pods.
    """

    def __init__(self, node: NodeDescription, wiring: list[int], *, in_full: bool) -> None:
        self.wiring = wiring
        self.in_full = in_full
        self.fingerprint = True
        super().__init__(node)

    def scan(self) -> None:
        """Exporters list what running containers have, and nothing of what only init containers had."""
        if not self.objects:
            pool = DevicePool(tuple(PluginDevice(f"gpu{place}", mask) for place, mask in enumerate(self.wiring)))
            self.agent.kubelet = replace(self.agent.kubelet, devices={GPU: pool})
            self.agent._state = KubeletState.empty(self.agent.kubelet)
        super().scan()
        topology = self.scans[-1]
        if not self.in_full:
            topology["attributes"] = [one for one in topology["attributes"] if one["name"] != METHOD]
        if not self.fingerprint:
            topology["attributes"] = [one for one in topology["attributes"] if one["name"] != FINGERPRINT]
        for numa, zone in enumerate(topology["zones"]):
            for row in zone["resources"]:
                if row["name"] in ("cpu", GPU):
                    row["available"] = str(int(row["allocatable"]) - self._used(self.agent._state, row["name"], numa))

    def in_use(self) -> list[tuple[int, int]]:
        """Count the CPUs and GPUs that an exporter would show in use, by NUMA node."""
        return self.in_use_of(self.agent._state)

    def in_use_of(self, state: KubeletState) -> list[tuple[int, int]]:
        """As ``in_use``, in another state."""
        return [(self._used(state, "cpu", numa), self._used(state, GPU, numa)) for numa in state.node.machine.numa_ids]

    def _used(self, state: KubeletState, name: str, numa: int) -> int:
        used = 0
        here = state.node.machine.numa_bits[numa]
        near = {device.id: device.near for device in state.node.devices[GPU].devices}
        for pod in state.pods.values():
            for one in pod.grant.containers:
                if one.kind is ContainerKind.INIT:
                    continue
                if name == "cpu":
                    used += (one.cpus.bits & here).bit_count()
                for device in one.devices.get(name, ()):
                    if self.in_full:
                        used += near[device] >> numa & 1
                    elif near[device].bit_length() - 1 == numa:
                        used += near[device].bit_count()
        return used


@st.composite
def lives(draw: st.DrawFn) -> SharedLife:
    """A node with two to four NUMA nodes and GPUs that are near any of them."""
    sockets, numa = draw(st.sampled_from(((1, 2), (2, 1), (1, 3), (2, 2))))
    wiring = draw(st.lists(st.integers(1, (1 << sockets * numa) - 1), min_size=2, max_size=6))
    hardware = Shape(sockets, numa, 4, 1, 16 * GIB, devices={GPU: (0,) * len(wiring)}).build()
    strict = (KubeletPolicy.SINGLE_NUMA_NODE, KubeletPolicy.RESTRICTED)
    reserved = CpuSet.of((0,))
    config = KubeletConfig(
        topology_policy=draw(st.sampled_from((*strict, *strict, KubeletPolicy.BEST_EFFORT))),
        topology_scope=draw(st.sampled_from((KubeletScope.CONTAINER, KubeletScope.CONTAINER, KubeletScope.POD))),
        cpu_policy="static",
        memory_policy=draw(st.sampled_from(("None", "None", "Static"))),
        reserved_cpus=reserved,
    )
    node = NodeDescription("n", hardware, Style.KUBELET, config, reserved=reserved)
    return SharedLife(node, wiring, in_full=draw(st.booleans()))


@st.composite
def gpu_pods(draw: st.DrawFn) -> dict[str, Any]:
    """The spec of a pod with GPUs, of its init container too now and then."""
    more = draw(st.integers(0, 2))
    apps = [container("app", draw(st.integers(1, 3)), 1, draw(st.integers(0, 3)))]
    apps += [container("more", 1, 1, draw(st.integers(0, 2)))] if more == 0 else []
    inits = [container("init", draw(st.integers(1, 2)), 1, draw(st.integers(0, 2)))] if draw(st.booleans()) else []
    return {"containers": apps, **({"initContainers": inits} if inits else {})}
