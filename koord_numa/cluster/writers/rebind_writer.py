"""Writes of a rebind (``ports.RebindWriter``).

These are conditional changes of resource-status, and the status of RebindResources. The module makes no decisions and
does not retry. The outcome is returned to the engine as an error of ``ports``.
"""

from collections.abc import Callable
from typing import Any, Final

from koord_numa.cluster.client import MERGE_PATCH, Api, Body
from koord_numa.cluster.resources import PODS, REBINDS, Call
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.request import PodKey
from koord_numa.core.rebind.pinned_pods import NumaAmounts
from koord_numa.core.rebind.plan import PodRevision, RebindAnswer, RebindRequest
from koord_numa.ports import Conflict, Gone, Invalid
from koord_numa.wire import names
from koord_numa.wire.errors import WireError
from koord_numa.wire.pod.pods import parse_pod
from koord_numa.wire.rebinds import automatic_rebind, parse_rebind, rebind_status, with_cpus

MOVES_SHOWN: Final = 500
"""Maximum pods in the plan or result of a status. ``moves`` counts all pods."""


class ApiRebindWriter:
    """``ports.RebindWriter`` for an API server. ``remaining`` is the lease's: nothing is written after its end."""

    def __init__(self, api: Api, remaining: Callable[[], float] | None = None) -> None:
        self._api = api
        self._remaining = remaining

    async def read_rebind(self, rebind: RebindRequest) -> RebindRequest:
        """Return the current RebindResource. Raises ``Gone`` also when the uid differs."""
        return parse_rebind(await self._rebind(rebind))

    async def answer(self, rebind: RebindRequest, answer: RebindAnswer) -> None:
        """Merge-patch the status with the uid as a precondition.

        The status is read first, so that its condition keeps its transition time.
        """
        before = (await self._rebind(rebind)).get("status")
        # Conditions keep their transition time only if the previous conditions are known.
        status = rebind_status(answer, before if isinstance(before, dict) else None)
        # A plan for a node with thousands of pods would exceed the maximum size of an object.
        status |= {key: status[key][:MOVES_SHOWN] for key in ("plan", "result") if status[key]}
        patch = {"metadata": {"uid": rebind.uid}, "status": status}
        try:
            call = Call("patch", REBINDS, "", rebind.name, "status")
            await self._api.send(call, Body(patch, MERGE_PATCH, self._remaining))
        except (Conflict, Invalid):
            await self._rebind(rebind)
            raise

    async def create_rebind(self, node: str, why: str, *, dry_run: bool) -> None:
        """Create a RebindResource. It is deleted a day after it has finished, so that proposals do not accumulate."""
        document = automatic_rebind(node, why, dry_run=dry_run)
        await self._api.send(Call("create", REBINDS), Body(document, remaining=self._remaining))

    async def delete_rebind(self, rebind: RebindRequest) -> None:
        """Delete the RebindResource with the uid as a precondition.

        The deletion is idempotent, so an unknown outcome can be retried.
        """
        # The uid protects a RebindResource that was re-created with the same name.
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": rebind.uid}}
        await self._api.send(Call("delete", REBINDS, "", rebind.name), Body(options, remaining=self._remaining))

    async def read_pod(self, pod: PodKey) -> PodRevision:
        """Return the current pod and its resource-status. Raises ``Gone`` also when the uid differs."""
        raw = await self._api.send(Call("get", PODS, pod.namespace, pod.name))
        found = parse_pod(raw)
        if found.key.uid != pod.uid:
            raise Gone(f"pod {pod} was re-created: {found.key.uid} instead of {pod.uid}")
        annotations = raw["metadata"].get("annotations") or {}
        return PodRevision(found, str(annotations.get(names.RESOURCE_STATUS, "")))

    async def patch_cpus(self, revision: PodRevision, cpus: CpuSet, numa: NumaAmounts | None = None) -> None:
        """Merge-patch the cpuset, and the amounts per NUMA node if they change, conditional on uid and resourceVersion.

        Raises ``Invalid`` when the resource-status is not a JSON object, because unknown content is not rewritten.
        Raises ``Gone`` when the uid differs, for which the server may respond 409 or 422.
        """
        key = revision.pod.key
        try:
            text = with_cpus(revision.status_text, cpus, numa)
        except WireError as error:
            raise Invalid(f"pod {key}: {error}") from None
        # The annotation of NUMA nodes follows the amounts.
        nodes = {} if numa is None else {names.NUMA_NODES: str(CpuSet.of(node for node, _ in numa))}
        about = {
            "uid": key.uid,
            "resourceVersion": revision.pod.resource_version,
            "annotations": {names.RESOURCE_STATUS: text} | nodes,
        }
        try:
            patch = Body({"metadata": about}, MERGE_PATCH, self._remaining)
            await self._api.send(Call("patch", PODS, key.namespace, key.name), patch)
        except (Conflict, Invalid):
            await self.read_pod(key)
            raise

    async def _rebind(self, rebind: RebindRequest) -> dict[str, Any]:
        raw: dict[str, Any] = await self._api.send(Call("get", REBINDS, "", rebind.name))
        uid = (raw.get("metadata") or {}).get("uid", "")
        if uid != rebind.uid:
            raise Gone(f"RebindResource {rebind.name} was re-created: {uid} instead of {rebind.uid}")
        return raw
