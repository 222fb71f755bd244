"""The writers of the engine's ports: binds, statuses of pods and groups, claims, volumes and rebinds."""

import asyncio
import re
from collections.abc import Awaitable, Callable, Mapping, Sequence
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final, TypeVar

from cachetools import LRUCache

from koord_numa.cluster.client import APPLY_PATCH, MERGE_PATCH, STRATEGIC_PATCH, Api, Body
from koord_numa.cluster.resources import CLAIMS, POD_GROUPS, PODS, REBINDS, RESOURCE_CLAIMS, VOLUMES, Call, Resource
from koord_numa.core.claims import RequestMapping
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.objects.claims import Allocation, ClaimAmounts, DeviceRequest, ResourceClaim
from koord_numa.core.objects.gangs import Dialect, GroupStatus, PodGroup
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.objects.volumes import PersistentVolume, PersistentVolumeClaim
from koord_numa.core.rebind.layout import NumaAmounts
from koord_numa.core.rebind.plan import PodRevision, RebindAnswer, RebindRequest
from koord_numa.ports import Conflict, Forbidden, Gone, Invalid, StillAllowed, Unavailable, UnknownOutcome
from koord_numa.wire import (
    FINALIZER,
    WireError,
    allocation_json,
    automatic_rebind,
    claim_amounts_json,
    extended_claim_json,
    mappings_json,
    names,
    parse_claim,
    parse_pod,
    parse_rebind,
    parse_resource_claim,
    parse_volume,
    rebind_status,
    rfc3339,
    rfc3339_micro,
    shortened,
    with_cpus,
)
from koord_numa.wire.names import RESERVED_AT

# Binds pods and writes their status (``ports.Binder``).
#
# Binding and annotation are a single call, as are conditions, nominations and evictions.
#
# It makes no decisions and does not retry. The outcome is returned to the engine as an error of ``ports``.

LONGEST_CONDITION: Final = 32_768
"""Maximum bytes of a condition's message that the API server accepts."""

REMEMBERED_CONDITIONS: Final = 20_000
"""Maximum number of waiting pods whose condition is known to be set.

A forgotten pod only gets a newer transition time.
"""

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class ApiBinder:
    """``ports.Binder`` for an API server. ``remaining`` is the lease's: nothing is written after its end."""

    def __init__(self, api: Api, remaining: Callable[[], float] | None = None) -> None:
        self._api = api
        self._remaining = remaining
        self._told: LRUCache[str, bool] = LRUCache(maxsize=REMEMBERED_CONDITIONS)

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        """Bind a pod with a POST to ``pods/binding``.

        The server sets the node, merges the annotations and checks the uid in a single update. It stores malformed
        annotation keys without validation and then rejects every later update of the pod, including evictions.
        Malformed keys therefore raise ``Invalid`` here.
        """
        # Checked before the call: with such keys the pod could not be updated afterwards.
        if wrong := [key for key in annotations if not valid_key(key)]:
            raise Invalid(f"bind {pod}: {wrong[0]!r} is not an annotation key")
        binding = {
            "apiVersion": "v1",
            "kind": "Binding",
            "metadata": {
                "name": pod.name,
                "namespace": pod.namespace,
                "uid": pod.uid,
                "annotations": dict(annotations),
            },
            "target": {"apiVersion": "v1", "kind": "Node", "name": node},
        }
        await self._api.send(
            Call("create", PODS, pod.namespace, pod.name, "binding"), Body(binding, remaining=self._remaining)
        )

    async def read_pod(self, pod: PodKey) -> Pod:
        """Return the current pod. Raises ``Gone`` also when the uid differs."""
        return _read(pod, await self._api.send(Call("get", PODS, pod.namespace, pod.name)))

    async def set_unschedulable(self, pod: PodKey, message: str) -> None:
        """Set the condition of kube-scheduler, which autoscalers and kube-state-metrics read."""
        await self._patch_status(pod, {"conditions": [self._condition(pod, message)]})
        self._told[pod.uid] = True

    async def nominate(self, pod: PodKey, node: str, why: str = "") -> Pod:
        """Set ``status.nominatedNodeName``. An empty node removes it.

        With ``why`` the condition is set too, as in kube-scheduler (``updatePod`` of ``schedule_one.go``).
        """
        conditions = {"conditions": [self._condition(pod, why)]} if why else {}
        seen = _read(pod, await self._patch_status(pod, {"nominatedNodeName": node or None, **conditions}))
        if why:
            self._told[pod.uid] = True
        return seen

    async def evict(self, pod: PodKey, message: str) -> None:
        """Evict a pod. The API server checks the disruption budgets and responds 429 if one is exhausted.

        ``message`` is only for the caller's event on the victim, because an ``Eviction`` cannot carry it.
        """
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            # The uid is a precondition, so that a later pod of the same name is not evicted.
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._api.send(
                Call("create", PODS, pod.namespace, pod.name, "eviction"), Body(eviction, remaining=self._remaining)
            )
        except UnknownOutcome as error:
            # Evictions are idempotent, so an unknown outcome can be retried.
            raise Unavailable(f"{error} ({message})") from error

    async def delete(self, pod: PodKey) -> None:
        """Delete a pod with the uid as a precondition. Disruption budgets are not checked."""
        options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": {"uid": pod.uid}}
        try:
            await self._api.send(
                Call("delete", PODS, pod.namespace, pod.name), Body(options, remaining=self._remaining)
            )
        # The only precondition is the uid.
        except Conflict as error:
            raise Gone(f"pod {pod} was replaced by another one of its name") from error
        except UnknownOutcome as error:
            raise Unavailable(str(error)) from error

    def _condition(self, pod: PodKey, message: str) -> dict[str, str]:
        condition = {
            "type": "PodScheduled",
            "status": "False",
            "reason": "Unschedulable",
            "message": shortened(message, LONGEST_CONDITION),
        }
        if pod.uid not in self._told:  # a changed message is not a transition; the merge keeps the existing time
            condition["lastTransitionTime"] = rfc3339(datetime.now(UTC))
        return condition

    async def _patch_status(self, pod: PodKey, status: Mapping[str, Any]) -> Any:
        """Patch the status with the uid as a precondition. A re-created pod gives 409 or 422, which raises ``Gone``."""
        patch = Body({"metadata": {"uid": pod.uid}, "status": status}, STRATEGIC_PATCH, self._remaining)
        try:
            return await self._api.send(Call("patch", PODS, pod.namespace, pod.name, "status"), patch)
        except (Conflict, Invalid) as error:
            # 409 or 422 may mean another uid, for which the read raises ``Gone``.
            if (await self.read_pod(pod)).node:
                raise Gone(f"pod {pod} is bound") from error
            raise


def _read(pod: PodKey, raw: Any) -> Pod:
    """Return the pod of a response. Raises ``Gone`` when the uid differs, and ``Invalid``."""
    try:
        found = parse_pod(raw)
    # A parser bug leaves the outcome of the bind open, so the pod stays assumed.
    except Exception as error:
        raise Invalid(f"pod {pod} cannot be read: {type(error).__name__}: {error}") from error
    # Another pod of the same name: the original pod is deleted.
    if found.key.uid != pod.uid:
        raise Gone(f"pod {pod} was re-created: {found.key.uid} instead of {pod.uid}")
    return found


@lru_cache(maxsize=256)  # nearly all pods have the same few keys
def valid_key(key: str) -> bool:
    """Report whether the key is a qualified name ``[prefix/]name``, as Kubernetes requires for annotations."""
    prefix, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or bool(_PREFIX.fullmatch(prefix)))


# Writes allocations and reservations of ResourceClaims (``ports.ClaimWriter``), as kube-scheduler's PreBind.
#
# Every call reads the claim and changes only the version that was read. Conflicts with other writers are retried a few
# times. The rules are those of kube-scheduler's dynamicresources plugin.

_Json = dict[str, Any]
T = TypeVar("T")

TRIES: Final = 5
PAUSE_SECONDS: Final = 0.01
"""Pause in seconds after a conflict, with at most ``TRIES`` attempts, as in kube-scheduler's ``bindClaim``."""


class ApiClaimWriter:
    """``ports.ClaimWriter`` for an API server. ``remaining`` is the lease's: nothing is written after its end."""

    def __init__(self, api: Api, remaining: Callable[[], float] | None = None) -> None:
        self._api = api
        self._remaining = remaining

    async def reserve(
        self, claim: ResourceClaim, pod: PodKey, allocation: Allocation | None, group: PodGroup | None = None
    ) -> ResourceClaim:
        """Add the finalizer if it is missing, then write allocation and reservation in a single update.

        An existing reservation comes from an interrupted cycle, and a request in flight may be about to remove it. An
        annotation then creates a new version of the claim, which such a request does not match.
        """

        async def write() -> ResourceClaim:
            raw = await self._read(claim)
            found = parse_resource_claim(raw)
            allocated = found.allocation is not None
            if allocation is None and not allocated:
                raise Conflict(f"claim {claim} got deallocated elsewhere in the meantime")
            # A claim for extended resources loses its finalizer immediately: its reservation does not keep it.
            if found.deleting and (allocation is not None or found.extended):
                raise Conflict(f"claim {claim} got deleted in the meantime")
            # An allocation of an earlier cycle is no conflict if the devices are the same.
            if (
                allocation is not None
                and found.allocation is not None
                and found.allocation.results != allocation.results
            ):
                raise Conflict(f"claim {claim} got allocated elsewhere in the meantime")
            # The reservation of a group is never removed, except with its allocation.
            if allocated and group is not None and group.uid in found.reserved_groups:
                return found
            if allocated and group is None and pod.uid in found.reserved_for:
                return parse_resource_claim(await self._annotate(raw))
            # First the finalizer: an allocated claim without it could be deleted while its pod uses it.
            if not allocated and not found.protected:
                # Add the finalizer, which keeps an allocated claim until it is deallocated.
                metadata = raw["metadata"]
                metadata = {**metadata, "finalizers": [*(metadata.get("finalizers") or ()), FINALIZER]}
                raw = await self._put({**raw, "metadata": metadata}, "")
            return await self._write_status(raw, _reserved(raw, pod, None if allocated else allocation, group))

        return await self._repeat(write)

    async def release(self, claim: ResourceClaim, pod: PodKey, allowed: StillAllowed) -> None:
        """Remove the pod's reservation and keep the allocation.

        kube-scheduler patches without a precondition, so that a late request can remove a newer reservation.
        """

        async def write() -> ResourceClaim:
            raw = await self._read(claim)
            found = parse_resource_claim(raw)
            # Checked again immediately before the write, for the version that was read.
            if pod.uid not in found.reserved_for or not await allowed():
                return found
            status = raw["status"]
            left = [it for it in status["reservedFor"] if it.get("uid") != pod.uid]
            return await self._write_status(raw, {**status, "reservedFor": left})

        await self._repeat(write)

    async def deallocate(self, claim: ResourceClaim, pod: str, allowed: StillAllowed) -> ResourceClaim:
        """Remove allocation, reservations and driver status in a single update, unless another pod uses the claim."""

        async def write() -> ResourceClaim:
            raw = await self._read(claim)
            found = parse_resource_claim(raw)
            groups = found.reserved_groups
            if found.other_consumers > len(groups) or any(uid != pod for uid in (*found.reserved_for, *groups)):
                raise Conflict(f"claim {claim} is used by others by now")
            if found.allocation is None:
                return found
            if not await allowed():
                raise Conflict(f"claim {claim} may no longer be deallocated by this process")
            # The driver status belongs to the allocation.
            kept = {
                key: value
                for key, value in raw["status"].items()
                if key not in ("allocation", "reservedFor", "devices")
            }
            return await self._write_status(raw, kept)

        return await self._repeat(write)

    async def create(self, pod: PodKey, requests: Sequence[DeviceRequest]) -> ResourceClaim:
        """Create a claim whose name is derived from the pod's uid.

        An existing claim comes from an earlier attempt whose response was lost.
        """
        document = extended_claim_json(pod, requests)
        body = Body(document, remaining=self._remaining)
        try:
            return parse_resource_claim(await self._api.send(Call("create", RESOURCE_CLAIMS, pod.namespace), body))
        except Conflict:
            name = document["metadata"]["name"]
            found = parse_resource_claim(await self._api.send(Call("get", RESOURCE_CLAIMS, pod.namespace, name)))
        except Forbidden as error:
            # The server responds to an exceeded quota with the same status as to a missing permission.
            if "exceeded quota" in error.args[0]:
                raise Invalid(error.args[0]) from None
            raise
        if not found.extended or found.owner != pod.uid:
            raise Conflict(f"claim {found} exists and is not that of the pod's extended resources")
        if found.deleting or found.spec.requests != tuple(requests):
            raise Conflict(f"claim {found} of an earlier attempt is no longer needed")
        return found

    async def delete(self, claim: ResourceClaim, allowed: StillAllowed) -> None:
        """Delete exactly the version that was read before ``allowed`` was checked, then remove the finalizer.

        The finalizer protects allocated claims. kube-scheduler's ``deleteClaim`` removes it first and then deletes any
        version.
        """

        async def write() -> None:
            raw = await self._read(claim)
            if not await allowed():
                return
            metadata = raw["metadata"]
            if not metadata.get("deletionTimestamp"):
                preconditions = {"uid": metadata["uid"], "resourceVersion": metadata["resourceVersion"]}
                options = {"apiVersion": "v1", "kind": "DeleteOptions", "preconditions": preconditions}
                call = Call("delete", RESOURCE_CLAIMS, metadata["namespace"], metadata["name"])
                try:
                    await self._api.send(call, Body(options, remaining=self._remaining))
                except Conflict as error:
                    raise _StaleError(str(error)) from None
                if not metadata.get("finalizers"):
                    return
                metadata = (raw := await self._read(claim))["metadata"]
            kept = [it for it in metadata.get("finalizers") or () if it != FINALIZER]
            await self._put({**raw, "metadata": {**metadata, "finalizers": kept}}, "")

        try:
            await self._repeat(write)
        except Gone:
            return

    async def map_requests(self, pod: PodKey, claim: str, mappings: Sequence[RequestMapping]) -> None:
        """Patch the pod status with the uid as a precondition.

        As ``patchPodExtendedResourceClaimStatus`` of kube-scheduler.
        """
        value = mappings_json(claim, mappings) if claim else None
        patch = {"metadata": {"uid": pod.uid}, "status": {"extendedResourceClaimStatus": value}}
        call = Call("patch", PODS, pod.namespace, pod.name, "status")
        written: _Json = await self._api.send(call, Body(patch, MERGE_PATCH, self._remaining))
        kept = (written.get("status") or {}).get("extendedResourceClaimStatus") or {}
        # A server that does not know the field drops it. The kubelet would then start the pod without its devices.
        if kept.get("resourceClaimName", "") != claim:
            raise Invalid(
                "the API server does not keep status.extendedResourceClaimStatus of pods: its feature gate DRAExtendedResource is off"
            )

    async def write_amounts(self, pod: PodKey, amounts: Sequence[tuple[str, ClaimAmounts]]) -> None:
        """Patch the pod status with the uid as a precondition.

        As ``patchNodeAllocatableResourceClaimStatus`` of kube-scheduler.
        """
        statuses = [claim_amounts_json(name, each) for name, each in sorted(amounts, key=lambda it: it[0])]
        patch = {"metadata": {"uid": pod.uid}, "status": {"nodeAllocatableResourceClaimStatuses": statuses}}
        call = Call("patch", PODS, pod.namespace, pod.name, "status")
        await self._api.send(call, Body(patch, MERGE_PATCH, self._remaining))

    async def _repeat(self, write: Callable[[], Awaitable[T]]) -> T:
        # Every attempt reads the newest version.
        for _ in range(TRIES - 1):
            try:
                return await write()
            except _StaleError:
                await asyncio.sleep(PAUSE_SECONDS)
        return await write()

    async def _read(self, claim: ResourceClaim) -> _Json:
        raw: _Json = await self._api.send(Call("get", RESOURCE_CLAIMS, claim.namespace, claim.name))
        # A later claim of the same name.
        if (raw.get("metadata") or {}).get("uid") != claim.uid:
            raise Gone(f"claim {claim} was re-created")
        return raw

    async def _annotate(self, raw: _Json) -> _Json:
        metadata = raw["metadata"]
        annotations = {**(metadata.get("annotations") or {}), RESERVED_AT: rfc3339_micro(datetime.now(UTC))}
        return await self._put({**raw, "metadata": {**metadata, "annotations": annotations}}, "")

    async def _write_status(self, raw: _Json, status: _Json) -> ResourceClaim:
        return parse_resource_claim(await self._put({**raw, "status": status}, "status"))

    async def _put(self, document: _Json, subresource: str) -> _Json:
        metadata = document["metadata"]
        call = Call("update", RESOURCE_CLAIMS, metadata["namespace"], metadata["name"], subresource)
        try:
            written: _Json = await self._api.send(call, Body(document, remaining=self._remaining))
        except Conflict as error:
            raise _StaleError(str(error)) from None
        return written


class _StaleError(Conflict):
    """The version that was read is outdated."""


def _reserved(raw: _Json, pod: PodKey, allocation: Allocation | None, group: PodGroup | None) -> _Json:
    status: _Json = dict(raw.get("status") or {})
    if allocation is not None:
        now = datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        status["allocation"] = {**allocation_json(allocation), "allocationTimestamp": now}
    consumer = {"resource": "pods", "name": pod.name, "uid": pod.uid}
    if group is not None:
        consumer = {
            "apiGroup": group.key.dialect.value,
            "resource": "podgroups",
            "name": group.key.name,
            "uid": group.uid,
        }
    status["reservedFor"] = [*(status.get("reservedFor") or ()), consumer]
    return status


# Writes the status of PodGroups (``ports.PodGroupWriter``) by server-side apply, which keeps other writers' fields.
#
# PodGroups of ``scheduling.k8s.io`` have a condition. PodGroups of Koordinator and scheduler-plugins have a phase and a
# number.

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


# Writes of a rebind (``ports.RebindWriter``).
#
# These are conditional changes of resource-status, and the status of RebindResources. The module makes no decisions and
# does not retry. The outcome is returned to the engine as an error of ``ports``.

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


# Binds claims to volumes (``ports.VolumeWriter``).
#
# It patches PersistentVolumes and PersistentVolumeClaims conditionally: every call reads the object and, if it differs
# from the desired state, patches exactly the version that was read.

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
