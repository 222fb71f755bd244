"""Small API objects for tests, and waiting for what happens in the background."""

import asyncio
import time
from collections.abc import Callable, Mapping
from typing import Any, Final

JsonObject = dict[str, Any]

PATIENCE: Final = 300.0
"""Seconds after which what is waited for counts as never happening, however busy the machine is."""


def pod_document(
    name: str,
    spec: JsonObject,
    *,
    labels: Mapping[str, str] | None = None,
    annotations: Mapping[str, Any] | None = None,
) -> JsonObject:
    """A pod for this scheduler in the default namespace, unless its spec names another one."""
    metadata = {
        "name": name,
        "namespace": "default",
        "labels": dict(labels or {}),
        "annotations": dict(annotations or {}),
    }
    return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": {"schedulerName": "koord-numa", **spec}}


def pod(name: str, *, node: str = "", cpu: str = "1", scheduler: str = "koord-numa", **spec: Any) -> JsonObject:
    """A pod in the default namespace."""
    body: JsonObject = {
        "schedulerName": scheduler,
        "containers": [{"name": "main", "image": "none", "resources": {"requests": {"cpu": cpu, "memory": "64Mi"}}}],
    } | spec
    if node:
        body["nodeName"] = node
    return {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": name, "namespace": "default"}, "spec": body}


def node(name: str, *, cpu: str = "8", labels: Mapping[str, str] | None = None, cordoned: bool = False) -> JsonObject:
    """A node with some allocatable resources."""
    amounts = {"cpu": cpu, "memory": "16Gi", "pods": "110"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": dict(labels or {})},
        "spec": {"unschedulable": True} if cordoned else {},
        "status": {"allocatable": amounts, "capacity": amounts},
    }


async def until(true: Callable[[], object]) -> None:
    """
    Let others run until something is true; fails the test when it takes longer than it ever should.

    What takes long to find out is asked seldom: those who are waited for run in this thread, or beside it on a busy machine.
    """
    async with asyncio.timeout(PATIENCE):
        while True:
            began = time.thread_time()
            if true():
                return
            await asyncio.sleep(max(0.005, 9 * (time.thread_time() - began)))
