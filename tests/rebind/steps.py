"""Writes of a rebind that can be made to fail, and a rebind that ends well."""

from tests.rebind.world import World

PATCH = {"verb": "patch", "resource": "pods", "subresource": ""}


async def repacked(world: World, name: str) -> None:
    """The named rebind has ended well and the node is as good as it can be."""
    status = await world.ended(name)
    assert status["phase"] == "Succeed", status
    assert (status["after"]["crossingPods"], status["after"]["splitCores"]) == (0, 0)
    assert world.complaints() == []
