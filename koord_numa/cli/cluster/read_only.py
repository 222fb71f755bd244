"""Ports for a scheduler that is asked and never run: no event is posted, and every write is an error."""

from collections.abc import Mapping
from typing import NoReturn

from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.ports import ObjectReference


class ReadOnlyPorts:
    """Binder, recorder and lease in one, of a scheduler that never runs."""

    def fresh(self) -> bool:
        """Never the leader."""
        return False

    def event(self, pod: PodKey, *, warning: bool, reason: str, message: str) -> None:
        """Discarded."""

    def node_event(self, node: str, *, warning: bool, reason: str, message: str) -> None:
        """Discarded."""

    def object_event(self, about: ObjectReference, *, warning: bool, reason: str, message: str) -> None:
        """Discarded."""

    async def bind(self, pod: PodKey, node: str, annotations: Mapping[str, str]) -> None:
        """Must not happen."""
        _refuse("bind", pod, node, annotations)

    async def read_pod(self, pod: PodKey) -> Pod:
        """Must not happen: everything was read before."""
        _refuse("read_pod", pod)

    async def set_unschedulable(self, pod: PodKey, message: str) -> None:
        """Must not happen."""
        _refuse("set_unschedulable", pod, message)

    async def nominate(self, pod: PodKey, node: str, why: str = "") -> Pod:
        """Must not happen."""
        _refuse("nominate", pod, node, why)

    async def delete(self, pod: PodKey) -> None:
        """Must not happen."""
        _refuse("delete", pod)

    async def evict(self, pod: PodKey, message: str) -> None:
        """Must not happen."""
        _refuse("evict", pod, message)


def _refuse(*what: object) -> NoReturn:
    raise AssertionError(f"a read-only scheduler was asked to write: {what}")
