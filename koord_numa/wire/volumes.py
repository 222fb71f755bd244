"""Persistent volumes, claims and storage classes: from API objects to what decides on nodes."""

from collections.abc import Mapping
from typing import Any, Final

from pydantic import Field

from koord_numa.core.constraints import NodeTerm, Operator, Requirement
from koord_numa.core.volumes import PersistentVolume, PersistentVolumeClaim, StorageClass
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.metadata import head
from koord_numa.wire.parsing import EnumReader, Problems, Strict, read
from koord_numa.wire.selectors import NodeSelectorModel, node_terms

ZONE_SEPARATOR: Final = "__"  # a volume in several zones names them in one label

BINDING_MODES: Final = EnumReader({"Immediate": False, "WaitForFirstConsumer": True})


class VolumeAffinity(Strict):
    """Which nodes reach a volume."""

    required: NodeSelectorModel | None = None


class ClaimReference(Strict):
    """The claim that a volume belongs to."""

    namespace: str = ""
    name: str = ""
    uid: str = ""


class VolumeSpec(Strict):
    """Spec of a PersistentVolume."""

    node_affinity: VolumeAffinity | None = None
    claim_ref: ClaimReference | None = None
    storage_class_name: str | None = None


class ClaimSpec(Strict):
    """Spec of a PersistentVolumeClaim."""

    volume_name: str | None = None
    storage_class_name: str | None = None
    access_modes: list[str] | None = None


class LabelTerm(Strict):
    """One condition of an allowed topology."""

    key: str
    values: list[str] = Field([])


class AllowedTopology(Strict):
    """One of the topologies in which a class makes volumes."""

    match_label_expressions: list[LabelTerm] | None = None


class ClassModel(Strict):
    """A StorageClass has no spec; its fields stand at the top."""

    provisioner: str = ""
    volume_binding_mode: str | None = None
    allowed_topologies: list[AllowedTopology] | None = None


def parse_volume(obj: Mapping[str, Any]) -> PersistentVolume:
    """A PersistentVolume. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "PersistentVolume", problems)
    path = top.path.at("spec")
    spec = problems.collect(lambda: read(VolumeSpec, top.body.get("spec") or {}, path), VolumeSpec())
    required = spec.node_affinity.required if spec.node_affinity else None
    claim = spec.claim_ref or ClaimReference()
    return PersistentVolume(
        name=top.name,
        node_terms=problems.collect(lambda: _terms(required, path.at("nodeAffinity")), None),
        zones=tuple(
            (key, tuple(sorted(set(top.labels[key].split(ZONE_SEPARATOR)))))
            for key in names.ZONE_LABELS
            if key in top.labels
        ),
        claim=f"{claim.namespace}/{claim.name}" if claim.name else "",
        claim_uid=claim.uid,
        storage_class=spec.storage_class_name or "",
        problem=problems.problem,
    )


def parse_claim(obj: Mapping[str, Any]) -> PersistentVolumeClaim:
    """A PersistentVolumeClaim. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "PersistentVolumeClaim", problems)
    spec = problems.collect(lambda: read(ClaimSpec, top.body.get("spec") or {}, top.path.at("spec")), ClaimSpec())
    legacy = top.annotations.get(names.LEGACY_CLASS)
    return PersistentVolumeClaim(
        namespace=top.namespace or "default",
        name=top.name,
        uid=top.uid,
        volume=spec.volume_name or "",
        bound=bool(spec.volume_name) and names.BIND_COMPLETED in top.annotations,
        storage_class=spec.storage_class_name if legacy is None else legacy,
        selected_node=top.annotations.get(names.SELECTED_NODE, ""),
        owner=top.metadata.controller,
        deleting=top.metadata.deletion_timestamp is not None,
        read_write_once_pod="ReadWriteOncePod" in (spec.access_modes or ()),
        problem=problems.problem,
    )


def parse_storage_class(obj: Mapping[str, Any]) -> StorageClass:
    """A StorageClass. Raises ``WireError`` only when it has no name."""
    problems = Problems()
    top = head(obj, "StorageClass", problems)
    model = problems.collect(lambda: read(ClassModel, top.body, top.path), ClassModel())
    mode = model.volume_binding_mode or "Immediate"
    return StorageClass(
        name=top.name,
        waits=problems.collect(lambda: BINDING_MODES.read(mode, top.path.at("volumeBindingMode")), False),
        provisions=model.provisioner != names.NO_PROVISIONER,
        topologies=tuple(_allowed(topology) for topology in model.allowed_topologies or ()),
        default=top.annotations.get(names.DEFAULT_CLASS) == "true",
        problem=problems.problem,
    )


def _terms(required: NodeSelectorModel | None, path: FieldPath) -> tuple[NodeTerm, ...] | None:
    return None if required is None else node_terms(required, path)


def _allowed(topology: AllowedTopology) -> NodeTerm:
    return NodeTerm(
        labels=tuple(
            Requirement(term.key, Operator.IN, tuple(sorted(term.values)))
            for term in topology.match_label_expressions or ()
        )
    )
