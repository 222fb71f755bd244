"""Execution of RebindResources: a node is locked, planned, and repacked in small conditional steps."""

from koord_numa.engine.rebind.automatic import AutomaticRebinds, DoubleHoldRepair, FinishedRebinds
from koord_numa.engine.rebind.context import RebindPorts, layout_of_node
from koord_numa.engine.rebind.controller import RebindController

__all__ = [
    "AutomaticRebinds",
    "DoubleHoldRepair",
    "FinishedRebinds",
    "RebindController",
    "RebindPorts",
    "layout_of_node",
]
