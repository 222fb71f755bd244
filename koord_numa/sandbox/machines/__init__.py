"""Simulated nodes of the embedded API server. They admit bound pods like real agents and record violations."""

from koord_numa.sandbox.machines.agents.agent import RejectedPod
from koord_numa.sandbox.machines.agents.node_services import NodeServices
from koord_numa.sandbox.machines.fleet import Fleet
from koord_numa.sandbox.machines.hardware.description import (
    STATIC_KUBELET,
    Hardware,
    NodeDescription,
    Numbering,
    Shape,
    Style,
)
from koord_numa.sandbox.machines.hardware.descriptions import load_descriptions, read_descriptions
from koord_numa.sandbox.machines.history import History, SimultaneousHold
from koord_numa.sandbox.machines.simulated_node import SimulatedNode

__all__ = [
    "STATIC_KUBELET",
    "Fleet",
    "Hardware",
    "History",
    "NodeDescription",
    "NodeServices",
    "Numbering",
    "RejectedPod",
    "Shape",
    "SimulatedNode",
    "SimultaneousHold",
    "Style",
    "load_descriptions",
    "read_descriptions",
]
