"""Writes the status of PodGroups (``ports.PodGroupWriter``) by server-side apply, which keeps other writers' fields.

PodGroups of ``scheduling.k8s.io`` have a condition. PodGroups of Koordinator and scheduler-plugins have a phase and a
number.
"""

from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any, Final

from koord_numa.cluster.client import APPLY_PATCH, Api, Body
from koord_numa.cluster.resources import POD_GROUPS, Call, Resource
from koord_numa.core.gangs.model import Dialect, GroupStatus, PodGroup
from koord_numa.ports import Conflict, Gone

PARAMS: Final = {"fieldManager": "koord-numa", "force": "true"}
CONDITIONS: Final = {"v1beta1": "PodGroupInitiallyScheduled", "v1alpha2": "PodGroupScheduled"}
LONGEST_MESSAGE: Final = 32_768
"""Maximum characters of a condition's message that the API server accepts."""


class ApiPodGroupWriter:
    """``ports.PodGroupWriter`` for an API server. ``remaining`` is the lease's: nothing is written after its end."""

    def __init__(self, api: Api, remaining: Callable[[], float] | None = None) -> None:
        self._api = api
        self._remaining = remaining
        self._served: dict[Dialect, Resource] = {}  # the version in which a status was last written

    async def write_status(self, group: PodGroup, status: GroupStatus) -> None:
        """Apply the status of a PodGroup with this uid, in the newest version that the cluster serves."""
        dialect = group.key.dialect
        known = self._served.get(dialect)
        versions = POD_GROUPS[dialect] if known is None else (known,)
        for resource in versions:
            try:
                await self._apply(resource, group, status)
            except Gone:
                # The version is not served, or the PodGroup does not exist.
                if resource is versions[-1]:
                    raise
            else:
                self._served[dialect] = resource
                return

    async def _apply(self, resource: Resource, group: PodGroup, status: GroupStatus) -> None:
        key = group.key
        applied = {
            "apiVersion": f"{resource.group}/{resource.version}",
            "kind": "PodGroup",
            # The uid is a precondition: a later PodGroup of the same name is not changed.
            "metadata": {"name": key.name, "namespace": key.namespace, "uid": group.uid},
            "status": _status(resource.version if key.dialect is Dialect.KUBERNETES else "", status),
        }
        call = Call("patch", resource, key.namespace, key.name, "status")
        try:
            await self._api.send(call, Body(applied, APPLY_PATCH, self._remaining), PARAMS)
        except Conflict as error:
            raise Gone(f"PodGroup {key} was re-created") from error


def _status(version: str, status: GroupStatus) -> dict[str, Any]:
    is_scheduled = status.reason == "Scheduled"
    if not version:
        return {"phase": "Scheduled" if is_scheduled else "Scheduling", "scheduled": status.scheduled}
    condition = {
        "type": CONDITIONS[version],
        "status": "True" if is_scheduled else "False",
        "reason": status.reason,
        "message": status.message[:LONGEST_MESSAGE],
        "lastTransitionTime": datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ"),
    }
    return {"conditions": [condition]}
