"""Binds pods and writes their status (``ports.Binder``).

Binding and annotation are a single call, as are conditions, nominations and evictions.

It makes no decisions and does not retry. The outcome is returned to the engine as an error of ``ports``.
"""

import re
from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any, Final

from cachetools import LRUCache

from koord_numa.cluster.client import STRATEGIC_PATCH, Api, Body
from koord_numa.cluster.resources import PODS, Call
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.ports import Conflict, Gone, Invalid, Unavailable, UnknownOutcome
from koord_numa.wire.metadata import rfc3339, shortened
from koord_numa.wire.pod.pods import parse_pod

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
            raise Invalid(f"bind {pod}: {wrong[0]!r} is no annotation key")
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
