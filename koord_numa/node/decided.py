"""
What a scheduler decided for the pods of this node, from their ``resource-status`` annotations.

Read without the models of ``wire``, which would double the agent's memory; a malformed annotation is remembered as the pod's problem
and decides nothing.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import orjson

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.quantity import amount
from koord_numa.wire import names

# such pods hold nothing, though their object and its annotation stay until collected
_FINAL: Final = frozenset({"Succeeded", "Failed"})
_MOST_NUMA_NODES: Final = 1024  # as the kernel's MAX_NUMNODES and sysfs/numa.py
_KOORDLET: Final = "koordlet"
KOORDLET_NAMESPACE: Final = "koordinator-system"
"""Where Koordinator's chart installs the DaemonSet ``koordlet``."""


@dataclass(frozen=True, slots=True)
class DecidedContainer:
    """One container of a pod as its status shows it. ``id`` is the runtime's id without scheme, empty until it is created."""

    name: str
    id: str
    running: bool


@dataclass(frozen=True, slots=True)
class DecidedPod:
    """
    One pod bound to the node. ``cpus`` is the decided cpuset (empty: the pod shares), ``amounts`` what it holds by NUMA node in our
    units, ``pools`` the shared pools that were chosen for it (``cpuSharedPools``). ``problem`` names a malformed annotation.
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

    @property
    def exclusive_to_best_effort(self) -> bool:
        """Must best-effort pods keep away from its CPUs? So for LSE alone, as koordlet's BE shared pools."""
        return self.koordinator_qos == "LSE"

    @property
    def key(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def numa(self) -> frozenset[int]:
        """The NUMA nodes on which something was allocated to it."""
        return frozenset(self.amounts)


def decided_pod(pod: Mapping[str, Any], koordlet_namespace: str = KOORDLET_NAMESPACE) -> DecidedPod | None:
    """The pod in an API object; ``None`` when it has ended and holds nothing any more."""
    metadata = pod.get("metadata") or {}
    status = pod.get("status") or {}
    # The phase decides and not a deletion timestamp: containers that are terminating still run.
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
        is_koordlet=metadata.get("namespace") == koordlet_namespace and _is_of_koordlet(metadata),
    )


def _is_of_koordlet(metadata: Mapping[str, Any]) -> bool:
    """Whether the DaemonSet koordlet controls the pod. Names and labels of pods prove nothing: every author of pods writes them."""
    return any(
        owner.get("controller") and owner.get("kind") == "DaemonSet" and owner.get("name") == _KOORDLET
        for owner in metadata.get("ownerReferences") or ()
        if isinstance(owner, Mapping)
    )


def _resource_status(text: str) -> tuple[CpuSet, dict[int, dict[str, int]]]:
    """Cpuset and amounts by NUMA node. Raises ``ValueError`` and its kin for anything malformed."""
    # Go's encoding/json, with which Koordinator reads it, matches names without regard to case.
    found = _folded(orjson.loads(text) or {})
    cpus = CpuSet.parse(found.get("cpuset") or "")
    amounts: dict[int, dict[str, int]] = {}
    # An entry without `node` is of NUMA node 0, as Go decodes it.
    for entry in map(_folded, found.get("numanoderesources") or ()):
        numa = entry.get("node") or 0
        if not isinstance(numa, int) or not 0 <= numa < _MOST_NUMA_NODES:
            raise ValueError(f"{str(numa)[:40]} is no NUMA node")
        # Two entries of one NUMA node add up.
        here = amounts.setdefault(numa, {})
        for name, quantity in (entry.get("resources") or {}).items():
            # Less than nothing would be offered to others on top of what there is.
            if (held := amount(name, quantity)) < 0:
                raise ValueError(f"{str(quantity)[:40]} of {name[:40]} is negative")
            here[name] = here.get(name, 0) + held
    return cpus, amounts


def _folded(value: Mapping[str, Any]) -> dict[str, Any]:
    return {key.lower(): item for key, item in value.items() if item is not None}


def _containers(status: Mapping[str, Any]) -> list[DecidedContainer]:
    found = []
    # Init containers run on the same cpuset as the others; sidecars among them for as long as the pod.
    for group in ("initContainerStatuses", "containerStatuses"):
        for entry in status.get(group) or ():
            _, _, container = str(entry.get("containerID") or "").rpartition("://")
            found.append(
                DecidedContainer(str(entry.get("name", "")), container, "running" in (entry.get("state") or {}))
            )
    return found
