"""
Carries a rebind out (``ports.RebindWriter``): conditional changes of resource-status, and the status of RebindResources.

It decides nothing and retries nothing: each outcome goes back to the engine as the error that names it.
"""

from collections.abc import Callable
from typing import Any, Final

from koord_numa.cluster.client import MERGE_PATCH, Api, Body
from koord_numa.cluster.resources import PODS, REBINDS, Call
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.rebind_request import PodRevision, RebindAnswer, RebindRequest
from koord_numa.core.objects.request import PodKey
from koord_numa.core.rebind.pinned_pods import NumaAmounts
from koord_numa.ports import Conflict, Gone, Invalid
from koord_numa.wire import names
from koord_numa.wire.errors import WireError
from koord_numa.wire.pod.pods import parse_pod
from koord_numa.wire.rebinds import automatic_rebind, parse_rebind, rebind_status, with_cpus

MOVES_SHOWN: Final = 500
"""Pods that a plan or result in a status names; ``moves`` counts them all."""


class ApiRebindWriter:
    """``ports.RebindWriter`` over one API server. ``remaining`` is the lease's: nothing is written after it has ended."""

    def __init__(self, api: Api, remaining: Callable[[], float] | None = None) -> None:
        self._api = api
        self._remaining = remaining

    async def read_rebind(self, rebind: RebindRequest) -> RebindRequest:
        """The RebindResource as it is now. Raises ``Gone`` also when the name belongs to another uid."""
        return parse_rebind(await self._rebind(rebind))

    async def answer(self, rebind: RebindRequest, answer: RebindAnswer) -> None:
        """
        One merge patch of the status; the uid in it is a precondition.

        The status is read first, so that its condition keeps its transition time.
        """
        before = (await self._rebind(rebind)).get("status")
        # Conditions keep their transition time only when the former ones are known.
        status = rebind_status(answer, before if isinstance(before, dict) else None)
        # A plan for a node with thousands of pods would exceed the size of an object.
        status |= {key: status[key][:MOVES_SHOWN] for key in ("plan", "result") if status[key]}
        patch = {"metadata": {"uid": rebind.uid}, "status": status}
        try:
            call = Call("patch", REBINDS, "", rebind.name, "status")
            await self._api.send(call, Body(patch, MERGE_PATCH, self._remaining))
        except (Conflict, Invalid):
            await self._rebind(rebind)
            raise

    async def create_rebind(self, node: str, why: str, *, dry_run: bool) -> None:
        """One create. It is deleted a day after its end, so that proposals do not pile up."""
        document = automatic_rebind(node, why, dry_run=dry_run)
        await self._api.send(Call("create", REBINDS), Body(document, remaining=self._remaining))

    async def delete_rebind(self, rebind: RebindRequest) -> None:
        """One conditional DELETE. Deleting twice does no harm, so a lost answer is only a reason to ask again."""
        # The uid: a RebindResource that was made again under the name stays.
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": rebind.uid}}
        await self._api.send(Call("delete", REBINDS, "", rebind.name), Body(options, remaining=self._remaining))

    async def read_pod(self, pod: PodKey) -> PodRevision:
        """The pod as it is now. Raises ``Gone`` also when the name belongs to another uid."""
        raw = await self._api.send(Call("get", PODS, pod.namespace, pod.name))
        found = parse_pod(raw)
        if found.key.uid != pod.uid:
            raise Gone(f"pod {pod} was re-created: {found.key.uid} instead of {pod.uid}")
        annotations = raw["metadata"].get("annotations") or {}
        return PodRevision(found, str(annotations.get(names.RESOURCE_STATUS, "")))

    async def patch_cpus(self, revision: PodRevision, cpus: CpuSet, numa: NumaAmounts | None = None) -> None:
        """
        One merge patch, conditional on uid and resourceVersion: the cpuset, and the amounts per NUMA node when they change with it.

        Raises ``Invalid`` when the resource-status is no JSON object: what is not understood is not rewritten. ``Gone`` when the
        name belongs to another uid, which a server may answer with 409 or 422.
        """
        key = revision.pod.key
        try:
            text = with_cpus(revision.status_text, cpus, numa)
        except WireError as error:
            raise Invalid(f"pod {key}: {error}") from None
        # The annotation with the NUMA nodes follows the amounts.
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
