"""Simulated nodes of the embedded API server. They admit bound pods like real agents and record violations."""

from koord_numa.sandbox.machines.agents import RejectedPod
from koord_numa.sandbox.machines.description import (
    STATIC_KUBELET,
    Hardware,
    NodeDescription,
    Numbering,
    Shape,
    Style,
    load_descriptions,
    read_descriptions,
)
from koord_numa.sandbox.machines.node_services import NodeServices
from koord_numa.sandbox.machines.simulated_node import Fleet, History, SimulatedNode, SimultaneousHold

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
