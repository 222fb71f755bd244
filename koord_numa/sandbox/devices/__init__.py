"""Simulated dynamic resource allocation: drivers that publish slices, the claim controller, and kubelets."""

from koord_numa.sandbox.devices.claim_controller import ClaimController
from koord_numa.sandbox.devices.drivers import device_classes, slices_of
from koord_numa.sandbox.devices.kubelets import ClaimKubelets, PrepareError
from koord_numa.sandbox.devices.simulated_devices import SimulatedDevices

__all__ = ["ClaimController", "ClaimKubelets", "PrepareError", "SimulatedDevices", "device_classes", "slices_of"]
