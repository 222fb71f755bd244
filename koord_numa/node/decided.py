"""
Allocations of a scheduler for the pods of this node, from their ``resource-status`` annotations.

Parsed without the models of ``wire``, which would double the agent's memory. A malformed annotation is a problem of the
pod and has no effect.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.vocabulary import isolation_words
from koord_numa.core.resources import amount
from koord_numa.wire import names

# Finished pods hold nothing, though their object and its annotation exist until garbage collection.
_FINAL: Final = frozenset({"Succeeded", "Failed"})
_MOST_NUMA_NODES: Final = 1024  # as the kernel's MAX_NUMNODES and sysfs.py
_KOORDLET: Final = "koordlet"
KOORDLET_NAMESPACE: Final = "koordinator-system"
"""Namespace of the DaemonSet ``koordlet`` in Koordinator's chart."""


@dataclass(frozen=True, slots=True)
class DecidedContainer:
    """A container in the status of a pod. ``id`` is the runtime's id without scheme, empty before the container is created."""

    name: str
    id: str
    running: bool


@dataclass(frozen=True, slots=True)
class DecidedPod:
    """
    A pod bound to the node, with the allocation of the scheduler.

    ``cpus`` is the allocated cpuset, empty for a pod on shared CPUs. ``amounts`` are the allocated amounts by NUMA node
    in internal units. ``problem`` describes a malformed annotation.
    """

    namespace: str
    name: str
    uid: str
    cpus: CpuSet = EMPTY
    amounts: Mapping[int, Mapping[str, int]] = field(default_factory=dict)
    koordinator_qos: str = ""
    kube_qos: str = ""
    containers: tuple[DecidedContainer, ...] = ()
    problem: str = ""
    is_koordlet: bool = False
    isolation: frozenset[str] = frozenset()  # words of the annotation cpu-isolation, known or not

    @property
    def exclusive_to_best_effort(self) -> bool:
        """Return whether best-effort pods must avoid its CPUs. True only for LSE, as in koordlet's BE shared pools."""
        return self.koordinator_qos == "LSE"

    @property
    def key(self) -> str:
        """Return ``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def numa(self) -> frozenset[int]:
        """Return the NUMA nodes with allocated amounts."""
        return frozenset(self.amounts)


def decided_pod(pod: Mapping[str, Any], koordlet_namespace: str = KOORDLET_NAMESPACE) -> DecidedPod | None:
    """Parse a pod. ``None`` if it is finished and holds nothing."""
    metadata = pod.get("metadata") or {}
    status = pod.get("status") or {}
    # By phase instead of deletion timestamp: terminating containers still run.
    if status.get("phase") in _FINAL:
        return None
    annotations, labels = metadata.get("annotations") or {}, metadata.get("labels") or {}
    cpus, problem = EMPTY, ""
    amounts: dict[int, dict[str, int]] = {}
    text = annotations.get(names.RESOURCE_STATUS)
    if text is not None:
        try:
            cpus, amounts = _resource_status(text)
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            problem = f"annotation {names.RESOURCE_STATUS}: {error}"
    return DecidedPod(
        namespace=str(metadata.get("namespace", "")),
        name=str(metadata.get("name", "")),
        uid=str(metadata.get("uid", "")),
        cpus=cpus,
        amounts=amounts,
        koordinator_qos=labels.get(names.QOS_CLASS, ""),
        kube_qos=str(status.get("qosClass", "")),
        containers=tuple(_containers(status)),
        problem=problem,
        isolation=isolation_words(annotations.get(names.CPU_ISOLATION, "")),
        is_koordlet=metadata.get("namespace") == koordlet_namespace and _is_of_koordlet(metadata),
    )


def _is_of_koordlet(metadata: Mapping[str, Any]) -> bool:
    """Return whether the DaemonSet koordlet controls the pod. Names and labels prove nothing: any author of pods can set them."""
    return any(
        owner.get("controller") and owner.get("kind") == "DaemonSet" and owner.get("name") == _KOORDLET
        for owner in metadata.get("ownerReferences") or ()
        if isinstance(owner, Mapping)
    )


def _resource_status(text: str) -> tuple[CpuSet, dict[int, dict[str, int]]]:
    """Parse cpuset and amounts by NUMA node. Malformed texts raise ``ValueError``, ``TypeError``, ``AttributeError`` or ``KeyError``."""
    # Koordinator uses Go's encoding/json, which matches names case-insensitively.
    found = _folded(orjson.loads(text) or {})
    cpus = CpuSet.parse(found.get("cpuset") or "")
    amounts: dict[int, dict[str, int]] = {}
    # An entry without `node` is for NUMA node 0, as in Go.
    for entry in map(_folded, found.get("numanoderesources") or ()):
        numa = entry.get("node") or 0
        if not isinstance(numa, int) or not 0 <= numa < _MOST_NUMA_NODES:
            raise ValueError(f"{str(numa)[:40]} is no NUMA node")
        # Several entries of a NUMA node add up.
        here = amounts.setdefault(numa, {})
        for name, quantity in (entry.get("resources") or {}).items():
            # A negative amount would increase the available amount of others.
            if (held := amount(name, quantity)) < 0:
                raise ValueError(f"{str(quantity)[:40]} of {name[:40]} is negative")
            here[name] = here.get(name, 0) + held
    return cpus, amounts


def _folded(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): item for key, item in value.items() if item is not None}


def _containers(status: Mapping[str, Any]) -> list[DecidedContainer]:
    found = []
    # Init containers run on the cpuset of the pod, sidecars as long as the pod.
    for group in ("initContainerStatuses", "containerStatuses"):
        for entry in status.get(group) or ():
            _, _, container = str(entry.get("containerID") or "").rpartition("://")
            found.append(
                DecidedContainer(str(entry.get("name", "")), container, "running" in (entry.get("state") or {}))
            )
    return found
