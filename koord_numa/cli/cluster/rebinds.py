"""Asking for a rebind and following it, for the command line: one RebindResource, created and then only read."""

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

from koord_numa.cluster.client import Api, Body
from koord_numa.cluster.resources import REBINDS, Call
from koord_numa.ports import Gone
from koord_numa.wire import names

POLL_SECONDS: Final = 0.3
PATIENCE: Final = 30.0
"""Seconds in which a scheduler must have said something about a new RebindResource."""


class NotTakenUp(Exception):
    """No scheduler has written a status in time."""


@dataclass(frozen=True, slots=True)
class RebindOrder:
    """What is asked. ``deadline`` is in seconds, ``None`` for the usual one."""

    node: str
    dry_run: bool = False
    deadline: int | None = None
    move_memory: bool = False

    @property
    def document(self) -> dict[str, Any]:
        """As a RebindResource; the server makes a name of its own from the node's."""
        spec: dict[str, Any] = {"nodeName": self.node, "rebindAction": "RebindCPU", "dryRun": self.dry_run}
        if self.move_memory:
            spec["moveMemory"] = True
        if self.deadline is not None:
            spec["deadlineInSeconds"] = self.deadline
        return {
            "apiVersion": f"{names.SCHEDULING_GROUP}/{names.REBIND_VERSION}",
            "kind": names.REBIND_KIND,
            "metadata": {"generateName": f"{self.node[:240]}-"},
            "spec": spec,
        }


async def create_rebind(api: Api, order: RebindOrder) -> Mapping[str, Any]:
    """Create the RebindResource; returns it. Raises ``ClusterError``, with the way out where the cluster does not know the kind."""
    try:
        created: Mapping[str, Any] = await api.send(Call("create", REBINDS), Body(order.document))
    except Gone as error:  # the only name in the request is that of the kind
        raise Gone(
            "the cluster has no RebindResources: install their definition (crds/rebindresources.yaml, or the chart), "
            "and let rebinds be handled by a running scheduler"
        ) from error
    return created


async def follow_rebind(
    api: Api, name: str, say: Callable[[str], None], patience: float = PATIENCE
) -> Mapping[str, Any]:
    """
    Wait for the end of a rebind; returns it with its status. ``say`` gets each new sentence about it.

    Raises ``NotTakenUp`` when no scheduler takes it up, and ``ClusterError``.
    """
    clock = asyncio.get_running_loop().time
    begun, reported = clock(), ""
    while True:
        found: Mapping[str, Any] = await api.send(Call("get", REBINDS, "", name))
        status: Mapping[str, Any] = found.get("status") or {}
        phase, reason = str(status.get("phase") or ""), str(status.get("reason") or "")
        if reason != reported:
            reported = reason
            say(f"{phase}: {reason}")
        if phase in ("Succeed", "Failed"):
            return found
        if not phase and clock() - begun > patience:
            raise NotTakenUp(f"no scheduler has taken up RebindResource {name} in {patience:g} s: does koord-numa run?")
        await asyncio.sleep(POLL_SECONDS)
