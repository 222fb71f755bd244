"""A pod's volumes: which claims they use, and which kinds would bind the pod to nodes in ways that we do not follow."""

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

from pydantic import ConfigDict, Field

from koord_numa.wire.metadata import Head
from koord_numa.wire.parsing import Strict

FREE_KINDS: Final = frozenset(
    {"cephfs", "configMap", "csi", "downwardAPI", "emptyDir", "flocker", "gitRepo", "glusterfs", "hostPath", "image"}
    | {"nfs", "projected", "quobyte", "secret"}
)
"""Kinds that any node can mount."""


class ClaimSource(Strict):
    """A volume that comes from a claim."""

    claim_name: str = Field(min_length=1)


class VolumeModel(Strict):
    """One volume; its kind is the name of the field that is set."""

    model_config = ConfigDict(extra="allow")

    name: str
    persistent_volume_claim: ClaimSource | None = None
    ephemeral: dict[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Mounts:
    """What a pod's volumes come down to."""

    claims: tuple[str, ...]
    unsupported: tuple[str, ...]


def volumes(top: Head, models: Iterable[VolumeModel]) -> Mounts:
    """Claims by name (an ephemeral volume's is ``<pod>-<volume>``), and a sentence for each kind we cannot honour."""
    claims: set[str] = set()
    unsupported: list[str] = []
    for model in models:
        if model.persistent_volume_claim is not None:
            claims.add(model.persistent_volume_claim.claim_name)
        elif model.ephemeral is not None:
            claims.add(f"{top.name}-{model.name}")
        else:
            kinds = [kind for kind, source in (model.model_extra or {}).items() if source is not None]
            unsupported += [f"volume {model.name} of kind {kind}" for kind in sorted(kinds) if kind not in FREE_KINDS]
    return Mounts(tuple(sorted(claims)), tuple(unsupported))
