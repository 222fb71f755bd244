"""Binds claims to volumes (``ports.VolumeWriter``).

It patches PersistentVolumes and PersistentVolumeClaims conditionally: every call reads the object and, if it differs
from the desired state, patches exactly the version that was read.
"""

from collections.abc import Callable
from typing import Any, Final

from koord_numa.cluster.client import MERGE_PATCH, Api, Body
from koord_numa.cluster.resources import CLAIMS, VOLUMES, Call
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim
from koord_numa.ports import Conflict, Gone
from koord_numa.wire import names
from koord_numa.wire.volumes import parse_claim, parse_volume

_Json = dict[str, Any]

_CLAIM: Final = "PersistentVolumeClaim"


class ApiVolumeWriter:
    """``ports.VolumeWriter`` for an API server. ``remaining`` is the lease's: nothing is written after its end."""

    def __init__(self, api: Api, remaining: Callable[[], float] | None = None) -> None:
        self._api = api
        self._remaining = remaining

    async def bind_volume(self, volume: str, claim: PersistentVolumeClaim) -> None:
        """Set the volume's ``claimRef`` to the claim. The volume controller then binds both."""
        found = await self._volume(volume)
        if found.claim and not found.belongs_to(claim):
            raise Conflict(f"volume {volume} was given to claim {found.claim}")
        # Already set, by this process or its predecessor.
        if found.claim_uid == claim.uid and found.claim:
            return
        reference = {
            "kind": _CLAIM,
            "apiVersion": "v1",
            "namespace": claim.namespace,
            "name": claim.name,
            "uid": claim.uid,
        }
        patch: _Json = {"spec": {"claimRef": reference}}
        if not found.claim:  # a volume that an administrator pre-bound keeps its claimRef when the claim is deleted
            patch["metadata"] = {"annotations": {names.BOUND_BY_CONTROLLER: "yes"}}
        await self._patch_volume(found, patch)

    async def release_volume(self, volume: str, claim: PersistentVolumeClaim) -> None:
        """Revert ``bind_volume`` unless the claim is bound. Volumes of other claims are not changed."""
        # A bound claim needs its volume.
        if (await self._claim(claim)).volume:
            return
        found = await self._volume(volume)
        if found.claim and found.claim_uid == claim.uid and found.bound_by_controller:
            drop = {"metadata": {"annotations": {names.BOUND_BY_CONTROLLER: None}}, "spec": {"claimRef": None}}
            await self._patch_volume(found, drop)

    async def select_node(self, claim: PersistentVolumeClaim, node: str) -> PersistentVolumeClaim:
        """Set the node for which the claim's provisioner creates the volume."""
        found = await self._claim(claim)
        # Bound, or already selected for this node.
        if found.volume or found.selected_node == node:
            return found
        # The decision was based on the node that was selected then.
        if found.selected_node != claim.selected_node:
            raise Conflict(
                f"claim {claim.name} is being provisioned for node {found.selected_node or 'another scheduler'}"
            )
        return await self._patch_claim(found, {names.SELECTED_NODE: node})

    async def clear_selected_node(self, claim: PersistentVolumeClaim, node: str) -> None:
        """Revert ``select_node``. A claim that is bound, or selected for another node, is not changed."""
        found = await self._claim(claim)
        if not found.volume and found.selected_node == node:
            await self._patch_claim(found, {names.SELECTED_NODE: None})

    async def _volume(self, name: str) -> PersistentVolume:
        return parse_volume(await self._api.send(Call("get", VOLUMES, "", name)))

    async def _claim(self, claim: PersistentVolumeClaim) -> PersistentVolumeClaim:
        found = parse_claim(await self._api.send(Call("get", CLAIMS, claim.namespace, claim.name)))
        if found.uid != claim.uid:
            raise Gone(f"claim {claim.namespace}/{claim.name} was re-created")
        return found

    async def _patch_volume(self, volume: PersistentVolume, patch: _Json) -> None:
        # The resourceVersion is a precondition: the patch changes only the version that was read.
        metadata = {**patch.get("metadata", {}), "resourceVersion": volume.resource_version}
        await self._api.send(
            Call("patch", VOLUMES, "", volume.name),
            Body({**patch, "metadata": metadata}, MERGE_PATCH, remaining=self._remaining),
        )

    async def _patch_claim(self, claim: PersistentVolumeClaim, annotations: _Json) -> PersistentVolumeClaim:
        metadata = {"uid": claim.uid, "resourceVersion": claim.resource_version, "annotations": annotations}
        call = Call("patch", CLAIMS, claim.namespace, claim.name)
        return parse_claim(
            await self._api.send(call, Body({"metadata": metadata}, MERGE_PATCH, remaining=self._remaining))
        )
