"""Simulated DRA devices of a sandbox: DeviceClasses, ResourceSlices, the claim controller and kubelets."""

from collections.abc import Sequence
from typing import Any

from koord_numa.sandbox.apiserver import DirectStore
from koord_numa.sandbox.devices.claim_controller import ClaimController
from koord_numa.sandbox.devices.drivers import CPU_DRIVER, device_classes, slices_of
from koord_numa.sandbox.devices.kubelets import ClaimKubelets
from koord_numa.sandbox.machines.hardware.description import CpuDriver, NodeDescription, Style


class SimulatedDevices:
    """The DRA parts of a sandbox, started and stopped together.

    The CPU driver runs on nodes where neither the kubelet nor Koordinator's agent selects CPUs, or where the
    description sets ``cpuDriver``.
    """

    def __init__(self, store: DirectStore, nodes: Sequence[NodeDescription]) -> None:
        """Create the parts. Nothing is published before ``start``."""
        self._store = store
        self._nodes = nodes
        self._controller = ClaimController(store)
        self.kubelets = ClaimKubelets(store)

    def start(self) -> None:
        """Publish the devices of the machines and process pods and claims."""
        for document in (*device_classes(), *(each for node in self._nodes for each in published(node))):
            self._store.apply(document)
        self._controller.start()
        self.kubelets.start()

    def stop(self) -> None:
        """Stop processing. Published objects remain."""
        self._controller.stop()
        self.kubelets.stop()


def published(node: NodeDescription) -> list[dict[str, Any]]:
    """Return the ResourceSlices that are published for a machine."""
    # A static kubelet and Koordinator's agent select CPUs themselves: an additional driver would allocate the same CPUs
    # twice.
    by_claim = node.style is Style.KUBELET and node.kubelet.cpu_policy != "static"
    by_claim = by_claim or node.cpu_driver is not CpuDriver.AUTO
    slices = slices_of(node, layout=node.cpu_driver is not CpuDriver.COUNT)
    return [each for each in slices if by_claim or each["spec"]["driver"] != CPU_DRIVER]
