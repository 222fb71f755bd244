"""Pods, claim templates and groups of the demo: short YAML lists that are converted to objects."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Annotated, Any, Final

import orjson
import yaml
from pydantic import BaseModel, ConfigDict, Field

from koord_numa.core.claims import CPU_CAPACITY, CPU_DRIVER
from koord_numa.wire import names
from koord_numa.wire.names import DEFAULT_SCHEDULER

Json = dict[str, Any]

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


class DemoClaims(BaseModel):
    """A ResourceClaimTemplate: ``devices`` are device classes by request, ``cpus`` whole CPUs of dra-driver-cpu."""

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    devices: Mapping[str, str] = {}
    cpus: Annotated[int, Field(ge=0)] = 0

    def document(self) -> Json:
        """Return the object, ready to be created."""
        requests: list[Json] = [
            {"name": request, "exactly": {"deviceClassName": name}} for request, name in self.devices.items()
        ]
        if self.cpus:
            capacity = {"requests": {CPU_CAPACITY: str(self.cpus)}}
            requests.append({"name": "cpus", "exactly": {"deviceClassName": CPU_DRIVER, "capacity": capacity}})
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaimTemplate",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {"spec": {"devices": {"requests": requests}}},
        }


class PodTemplate(BaseModel):
    """
    ``count`` pods of one kind. ``spec`` is the raw text of their resource-spec; ``burst`` doubles the CPU limit; ``claims`` is the
    template of their ResourceClaim, ``tolerates`` the key of a taint. With ``gang`` they are placed together or not at all.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    name: str
    count: Annotated[int, Field(ge=1)] = 1
    qos: str = ""
    cpu: str = ""
    memory: str = ""
    bind: str = ""
    numa: str = ""
    arch: str = ""
    spec: str = ""
    burst: bool = False
    kubelet: bool = False
    where: Mapping[str, str] = {}
    limits: Mapping[str, str] = {}
    claims: str = ""
    tolerates: str = ""
    gang: bool = False

    def pod_group(self) -> Json:
        """Return the PodGroup of a gang, ready to be created."""
        return {
            "apiVersion": "scheduling.k8s.io/v1beta1",
            "kind": "PodGroup",
            "metadata": {"name": self.name, "namespace": "default"},
            "spec": {"schedulingPolicy": {"gang": {"minCount": self.count}}},
        }

    def pods(self) -> Iterator[Json]:
        """Yield the Pod objects, ready to be created."""
        for number in range(1, self.count + 1):
            yield self._pod(self.name if self.count == 1 else f"{self.name}-{number}")

    def _pod(self, name: str) -> Json:
        selector = dict(self.where)
        if self.arch:
            selector["kubernetes.io/arch"] = self.arch
        if self.kubelet:
            selector["cpus"] = "kubelet"
        return {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": "default",
                "labels": {"app": self.name, **({names.QOS_CLASS: self.qos} if self.qos else {})},
                "annotations": self._annotations(),
            },
            "spec": {
                "schedulerName": DEFAULT_SCHEDULER,
                "containers": [{"name": "main", "image": "example.org/demo", "resources": self._resources()}],
                **({"nodeSelector": selector} if selector else {}),
                **({"tolerations": [{"key": self.tolerates}]} if self.tolerates else {}),
                **({"resourceClaims": [self._claim]} if self.claims else {}),
                **({"schedulingGroup": {"podGroupName": self.name}} if self.gang else {}),
            },
        }

    @property
    def _claim(self) -> Json:
        return {"name": "devices", "resourceClaimTemplateName": self.claims}

    def _annotations(self) -> dict[str, str]:
        written: dict[str, str] = {}
        # `spec` overrides `bind`: it is raw text, for demonstrations of malformed annotations.
        if self.bind:
            written[names.RESOURCE_SPEC] = orjson.dumps({"requiredCPUBindPolicy": self.bind}).decode()
        if self.spec:
            written[names.RESOURCE_SPEC] = self.spec
        if self.numa:
            written[names.NUMA_TOPOLOGY_SPEC] = orjson.dumps({"numaTopologyPolicy": self.numa}).decode()
        return written

    def _resources(self) -> Json:
        requests = {name: text for name, text in (("cpu", self.cpu), ("memory", self.memory)) if text}
        requests.update(self.limits)
        limits = {**requests, **({"cpu": "3"} if self.burst else {})}
        amounts: Json = {"requests": requests, "limits": limits} if requests else {}
        return {**amounts, "claims": [{"name": "devices"}]} if self.claims else amounts


def load_pods(path: Path, seed: int | None = None) -> list[Json]:
    """Return all pods of a file in order. With a seed, the order is shuffled deterministically."""
    found = yaml.load(path.read_text(encoding="utf-8"), _LOADER)  # noqa: S506  (the safe loader in C)
    pods = [pod for entry in found["pods"] for pod in PodTemplate.model_validate(entry).pods()]
    if seed is not None:
        Random(seed).shuffle(pods)  # noqa: S311  (a repeatable order, not a secret)
    return pods


def load_referenced(path: Path) -> list[Json]:
    """Return the ResourceClaimTemplates and PodGroups that the pods of a file refer to."""
    found = yaml.load(path.read_text(encoding="utf-8"), _LOADER)  # noqa: S506  (the safe loader in C)
    claims = [DemoClaims.model_validate(entry).document() for entry in found.get("claimTemplates", ())]
    templates = map(PodTemplate.model_validate, found["pods"])
    return [*claims, *(template.pod_group() for template in templates if template.gang)]
