"""Simulated machines: nodes that publish themselves to the embedded API server and act on the pods bound to them, forgiving nothing."""

from koord_numa.sandbox.machines.agent import Complaint
from koord_numa.sandbox.machines.description import STATIC_KUBELET, NodeDescription, Style
from koord_numa.sandbox.machines.descriptions import load_descriptions, read_descriptions
from koord_numa.sandbox.machines.fleet import Fleet
from koord_numa.sandbox.machines.hardware import Hardware, Numbering, Shape
from koord_numa.sandbox.machines.history import Clash, History
from koord_numa.sandbox.machines.node_services import NodeServices
from koord_numa.sandbox.machines.simulated_node import SimulatedNode

__all__ = [
    "STATIC_KUBELET",
    "Clash",
    "Complaint",
    "Fleet",
    "Hardware",
    "History",
    "NodeDescription",
    "NodeServices",
    "Numbering",
    "Shape",
    "SimulatedNode",
    "Style",
    "load_descriptions",
    "read_descriptions",
]
