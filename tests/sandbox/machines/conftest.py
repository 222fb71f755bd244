"""A server without sockets, and a rack of small nodes on it."""

from collections.abc import Callable, Iterable
from pathlib import Path

import pytest

from koord_numa.sandbox.apiserver import ApiServer, DirectStore
from koord_numa.sandbox.machines.description import NodeDescription
from koord_numa.sandbox.machines.simulated_node import Fleet

CRDS = sorted((Path(__file__).parents[3] / "crds").rglob("*.yaml"))
NOW = "2026-01-01T00:00:00Z"

MakeRack = Callable[[Iterable[NodeDescription]], Fleet]


@pytest.fixture
def store() -> DirectStore:
    """The objects of a server that is not listening."""
    return ApiServer(crds=CRDS).store


@pytest.fixture
def rack_of(store: DirectStore) -> MakeRack:
    """Makes a rack and starts it; the time stands still."""

    def make(nodes: Iterable[NodeDescription]) -> Fleet:
        rack = Fleet(store, nodes, clock=lambda: NOW)
        rack.start()
        return rack

    return make
