"""The controller as an event handler: which RebindResources it knows after events and complete lists."""

from typing import Any

from koord_numa.core.rebind.plan import RebindRequest
from koord_numa.core.value_objects import replace
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.ports import DELETED, EventHandler
from tests.engine.world import make_world

ONE, TWO = RebindRequest("one", "uid-1", "a"), RebindRequest("two", "uid-2", "b")


def controller() -> RebindController:
    """A controller that is not run."""
    unused: Any = None
    return RebindController(make_world().engine, unused)


def names(made: RebindController) -> list[str]:
    return sorted(request.name for request in made.known())


def test_a_complete_list_shows_what_is_gone() -> None:
    made = controller()
    handler: EventHandler[RebindRequest] = made
    handler.replace([ONE, TWO])
    handler.synced()
    assert names(made) == ["one", "two"]
    handler.replace([replace(TWO, generation=2)])
    assert made.known() == [replace(TWO, generation=2)]


def test_single_events() -> None:
    made = controller()
    made.observe("ADDED", ONE)
    made.observe("ADDED", ONE)
    assert names(made) == ["one"]
    made.observe(DELETED, ONE)
    made.observe(DELETED, TWO)
    assert made.known() == []
