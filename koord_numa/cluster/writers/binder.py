"""
Makes decisions true (``ports.Binder``): one call binds and annotates; conditions, nominations and evictions are single calls too.

It decides nothing and retries nothing: each outcome goes back to the engine as the error that names it.
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
"""Bytes that the API server accepts in a condition's message."""

REMEMBERED_CONDITIONS: Final = 20_000
"""Waiting pods whose condition is known to be set; a forgotten one only gets a newer transition time."""

_NAME: Final = re.compile(r"[A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?")
_PREFIX: Final = re.compile(r"(?=.{1,253}\Z)[a-z0-9]([a-z0-9-]*[a-z0-9])?(\.[a-z0-9]([a-z0-9-]*[a-z0-9])?)*")


class ApiBinder:
    """``ports.Binder`` over one API server. ``remaining`` is the lease's: nothing is written after it has ended."""

    def __init__(self, api: Api, remaining: Callable[[], float] | None = None) -> None:
        self._api = api
        self._remaining = remaining
        self._told: LRUCache[str, bool] = LRUCache(maxsize=REMEMBERED_CONDITIONS)

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        """
        One POST to ``pods/binding``: the server sets the node, merges the annotations and checks the uid in a single update.

        The server stores malformed annotation keys unchecked and then refuses every later update of that pod, evictions
        included; so keys are checked here and raise ``Invalid``.
        """
        # Before the call: the server stores such keys, and the pod could not be updated afterwards.
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
        """The pod as it is now. Raises ``Gone`` also when the name belongs to another uid."""
        return _read(pod, await self._api.send(Call("get", PODS, pod.namespace, pod.name)))

    async def set_unschedulable(self, pod: PodKey, message: str) -> None:
        """The condition that kube-scheduler sets, read by autoscalers and kube-state-metrics."""
        await self._patch_status(pod, {"conditions": [self._condition(pod, message)]})
        self._told[pod.uid] = True

    async def nominate(self, pod: PodKey, node: str, why: str = "") -> Pod:
        """
        ``status.nominatedNodeName``; an empty node removes it. With ``why`` the condition goes along, as by kube-scheduler
        (``updatePod`` of ``schedule_one.go``).
        """
        conditions = {"conditions": [self._condition(pod, why)]} if why else {}
        seen = _read(pod, await self._patch_status(pod, {"nominatedNodeName": node or None, **conditions}))
        if why:
            self._told[pod.uid] = True
        return seen

    async def evict(self, pod: PodKey, message: str) -> None:
        """
        An eviction asks the API server, which counts disruption budgets and answers 429 when one forbids it.

        ``message`` is for the caller's event on the victim: an ``Eviction`` cannot carry it.
        """
        eviction = {
            "apiVersion": "policy/v1",
            "kind": "Eviction",
            "metadata": {"name": pod.name, "namespace": pod.namespace},
            # The uid as a precondition, so that a pod of the same name which came after it is spared.
            "deleteOptions": {"preconditions": {"uid": pod.uid}},
        }
        try:
            await self._api.send(
                Call("create", PODS, pod.namespace, pod.name, "eviction"), Body(eviction, remaining=self._remaining)
            )
        except UnknownOutcome as error:
            # Evicting twice does no harm, so here an open outcome is only a reason to ask again.
            raise Unavailable(f"{error} ({message})") from error

    async def delete(self, pod: PodKey) -> None:
        """A DELETE with the uid as its precondition, which asks no disruption budget."""
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
        if pod.uid not in self._told:  # a new message alone is no transition; the merge keeps the time that is there
            condition["lastTransitionTime"] = rfc3339(datetime.now(UTC))
        return condition

    async def _patch_status(self, pod: PodKey, status: Mapping[str, Any]) -> Any:
        """The uid inside the patch is a precondition: a re-created pod answers 409 or 422 and is ``Gone`` for us."""
        patch = Body({"metadata": {"uid": pod.uid}, "status": status}, STRATEGIC_PATCH, self._remaining)
        try:
            return await self._api.send(Call("patch", PODS, pod.namespace, pod.name, "status"), patch)
        except (Conflict, Invalid) as error:
            # 409 or 422 may mean another uid; the read says which it is, and raises ``Gone`` then.
            if (await self.read_pod(pod)).node:
                raise Gone(f"pod {pod} is bound") from error
            raise


def _read(pod: PodKey, raw: Any) -> Pod:
    """The pod as an answer of the API server has it. Raises ``Gone`` when it is another one of its name, and ``Invalid``."""
    try:
        found = parse_pod(raw)
    # A bug that its values find says nothing about its bind: it settles with its hold kept.
    except Exception as error:
        raise Invalid(f"pod {pod} cannot be read: {type(error).__name__}: {error}") from error
    # Another pod of the same name: the one that was decided on is gone.
    if found.key.uid != pod.uid:
        raise Gone(f"pod {pod} was re-created: {found.key.uid} instead of {pod.uid}")
    return found


@lru_cache(maxsize=256)  # nearly all pods get the same few
def valid_key(key: str) -> bool:
    """Is this a qualified name as Kubernetes demands of annotation keys: ``[prefix/]name``?"""
    prefix, slash, name = key.rpartition("/")
    return bool(_NAME.fullmatch(name)) and (not slash or bool(_PREFIX.fullmatch(prefix)))
