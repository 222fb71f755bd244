"""Devices by claim for a sandbox: classes, slices of its machines, claim controller and kubelets, started and stopped together."""

from collections.abc import Sequence
from typing import Any

from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.sandbox.devices.claim_controller import ClaimController
from koord_numa.sandbox.devices.drivers import CPU_DRIVER, device_classes, slices_of
from koord_numa.sandbox.devices.kubelets import ClaimKubelets
from koord_numa.sandbox.machines.hardware.description import CpuDriver, NodeDescription, Style


class SimulatedDevices:
    """The CPU driver runs where neither the kubelet nor Koordinator's agent chooses CPUs, or where a description has it (``cpuDriver``)."""

    def __init__(self, store: DirectStore, nodes: Sequence[NodeDescription]) -> None:
        """Nothing is published before ``start``."""
        self._store = store
        self._nodes = nodes
        self._controller = ClaimController(store)
        self.kubelets = ClaimKubelets(store)

    def start(self) -> None:
        """Publish what the machines have, and act on pods and claims from now on."""
        for document in (*device_classes(), *(each for node in self._nodes for each in published(node))):
            self._store.apply(document)
        self._controller.start()
        self.kubelets.start()

    def stop(self) -> None:
        """Act no more; what is published stays."""
        self._controller.stop()
        self.kubelets.stop()


def published(node: NodeDescription) -> list[dict[str, Any]]:
    """The slices of one machine."""
    # A static kubelet and Koordinator's agent choose CPUs themselves: the driver beside them would hand the same ones out twice.
    by_claim = node.style is Style.KUBELET and node.kubelet.cpu_policy != "static"
    by_claim = by_claim or node.cpu_driver is not CpuDriver.AUTO
    slices = slices_of(node, layout=node.cpu_driver is not CpuDriver.COUNT)
    return [each for each in slices if by_claim or each["spec"]["driver"] != CPU_DRIVER]
