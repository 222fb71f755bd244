"""The scheduling engine: cluster state, queue, loop. It talks to the world only through ``koord_numa.ports``."""

from koord_numa.engine.cluster_state import DELETED
from koord_numa.engine.engine import Engine, Source
from koord_numa.engine.outside import Outside

__all__ = ["DELETED", "Engine", "Outside", "Source"]
