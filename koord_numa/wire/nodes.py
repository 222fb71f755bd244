"""Parse Nodes: resources, taints, images and Koordinator's labels. A malformed label makes the node unusable."""

from collections.abc import Iterable, Mapping
from functools import lru_cache, partial
from itertools import islice
from typing import Any, Final

from koord_numa.core.objects.constraints import TaintEffect
from koord_numa.core.objects.node import Image, Node, NodeReservation, Taint
from koord_numa.core.objects.vocabulary import NodeBindPolicy, NumaAllocateStrategy, NumaPolicy
from koord_numa.core.resources import CPU, MILLI, PODS
from koord_numa.core.value_objects import value_field
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath, quoted
from koord_numa.wire.misspelled_keys import unread_members, unread_node_keys, unread_ratios
from koord_numa.wire.parsing import (
    EnumReader,
    GoJson,
    Head,
    Problems,
    Quantity,
    Strict,
    T,
    current_name,
    head,
    load_json,
    read_as,
    read_json,
    read_time,
    requested,
    supplied,
)
from koord_numa.wire.pod_annotations import NUMA_POLICIES, cpu_list

MOST_IMAGES: Final = 256
"""Maximum images read per node. Kubelets report 50 by default (``nodeStatusMaxImages``), the largest first."""

MOST_NAMES: Final = 8
LONGEST_NAME: Final = 512


class ContainerImage(Strict):
    """The image of a container. Images are parsed without this model, since they never make a pod malformed."""

    image: str | None = None


def node_images(status: object) -> frozenset[Image]:
    """Return the images in ``status.images`` of a node."""
    listed = status.get("images") if isinstance(status, Mapping) else None
    if not isinstance(listed, list):
        return _NONE
    return frozenset(image for each in islice(listed, MOST_IMAGES) if (image := _image(each)) is not None)


def pod_images(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """
    Return the normalized image name of each init container, container and image volume.

    The name is empty where no image is given. As ``sumImageScores`` in ``imagelocality/image_locality.go``.
    """
    # Init containers first, as upstream sums them; their order does not matter to the score.
    named = [each.get("image") for key in ("initContainers", "containers") for each in _items(spec, key)]
    volumes = (each.get("image") for each in _items(spec, "volumes"))
    named += [volume.get("reference") for volume in volumes if isinstance(volume, Mapping)]
    return tuple(normalized(name) if isinstance(name, str) and len(name) <= LONGEST_NAME else "" for name in named)


@lru_cache(maxsize=8192)
def normalized(name: str) -> str:
    """Return the image name, with the tag ``latest`` if it has neither tag nor digest (``normalizedImageName``)."""
    # A colon after the last slash begins a tag or digest; one before it begins a port.
    return f"{name}:latest" if name and name.rfind(":") <= name.rfind("/") else name


def _image(listed: object) -> Image | None:
    if not isinstance(listed, Mapping):
        return None
    names, size = listed.get("names"), listed.get("sizeBytes") or 0
    # Sizes from 2**62 could not be summed in 64 bits.
    if not isinstance(names, list) or not isinstance(size, int) or not 0 < size < 1 << 62:
        return None
    kept = tuple(name for name in names[:MOST_NAMES] if isinstance(name, str) and len(name) <= LONGEST_NAME)
    return _shared(kept, int(size)) if kept else None


@lru_cache(maxsize=8192)
def _shared(names: tuple[str, ...], size: int) -> Image:
    """Return the image. Nodes with the same image share one value."""
    return Image(names, size)


def _items(spec: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    listed = spec.get(key)
    return [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else ()


_NONE: Final[frozenset[Image]] = frozenset()


LARGEST_RATIO: Final = 100.0
"""Upper bound of ratios. Koordinator's own writers stop at 5. Larger ratios are mistakes and could overflow amounts."""

APPLY_POLICIES: Final = EnumReader({"": False, "Default": False, "ReservedCPUsOnly": True})


class Reservation(GoJson):
    """``node.koordinator.sh/reservation``."""

    resources: dict[str, Quantity] = value_field(default_factory=dict)
    reserved_cpus: str = value_field(default="", name="reservedCPUs")
    apply_policy: str = ""


def amplification(annotations: Mapping[str, str], path: FieldPath) -> dict[str, float] | None:
    """Return the ratios above 1 by resource, ``None`` without the annotation. Ratios up to 1 have no effect and are omitted."""
    text = annotations.get(names.AMPLIFICATION)
    if text is None:
        return None
    path = path.annotation(names.AMPLIFICATION)
    found = read_as(_RATIOS, load_json(text, path), path) or {}
    for resource, ratio in found.items():
        if not 0 <= ratio <= LARGEST_RATIO:
            raise path.at(resource).error(f"{quoted(ratio)} is not a ratio from 0 to {LARGEST_RATIO:g}")
    # A ratio up to 1 has no effect upstream, and would mark the node as amplified.
    return {current_name(resource): float(ratio) for resource, ratio in found.items() if ratio > 1}


def reservation(annotations: Mapping[str, str], path: FieldPath) -> NodeReservation:
    """Return the node's reservation. CPU ids, if given, replace the amount of cpu, as in Koordinator's node transformer."""
    text = annotations.get(names.RESERVATION)
    if text is None:
        return NodeReservation()
    path = path.annotation(names.RESERVATION)
    found = read_json(Reservation, text, path)
    cpus = cpu_list(found.reserved_cpus, path.at("reservedCPUs"))
    amounts = requested(found.resources, path.at("resources"))
    return NodeReservation(
        cpus=cpus,
        # CPUs reserved by id count as whole CPUs, whatever the amount.
        amounts={**amounts, CPU: len(cpus) * MILLI} if cpus else amounts,
        reserved_cpus_only=APPLY_POLICIES.read(found.apply_policy, path.at("applyPolicy")),
    )


_RATIOS: Final = dict[str, int | float] | None


BIND_POLICIES: Final = EnumReader(
    {"None": NodeBindPolicy.NONE} | {policy.value: policy for policy in NodeBindPolicy},
    also={"PCPUOnly": NodeBindPolicy.FULL_PCPUS_ONLY},  # the first name in the proposal
)
TAINT_EFFECTS: Final = EnumReader({effect.value: effect for effect in TaintEffect})
STRATEGIES: Final = EnumReader({strategy.value: strategy for strategy in NumaAllocateStrategy})


class TaintModel(Strict, kw_only=True):
    """A taint."""

    key: str
    value: str | None = None
    effect: str


class NodeSpec(Strict):
    """The part of a node's spec that is relevant for scheduling."""

    taints: list[TaintModel] | None = None
    unschedulable: bool | None = None


class NodeStatus(Strict):
    """The resources and features of the node."""

    allocatable: dict[str, Quantity] | None = None
    declared_features: list[str] | None = None


class NodeInfoModel(Strict):
    """The boot id of the machine and the kubelet version."""

    boot_id: str | None = value_field(default=None, name="bootID")
    kubelet_version: str | None = None


class ConditionModel(Strict):
    """A condition of the node."""

    type: str | None = None
    status: str | None = None
    last_transition_time: str | None = None


class KubeletStatus(Strict):
    """The fields that identify one run of a kubelet."""

    node_info: NodeInfoModel | None = None
    conditions: list[ConditionModel] | None = None


def parse_node(obj: Mapping[str, Any]) -> Node:
    """
    Parse a Node. ``Node.problem`` names malformed parts.

    Raises ``WireError`` only if the object has no name.
    """
    problems = Problems()
    top = head(obj, "Node", problems)
    spec = problems.part(top, "spec", NodeSpec)
    status = problems.part(top, "status", NodeStatus)
    # Not needed to place pods, so a mistake here does not make the node unusable.
    life = Problems().part(top, "status", KubeletStatus)
    path = top.path.at("status.allocatable")
    nothing: dict[str, int] = {}
    allocatable = problems.collect(lambda: supplied(status.allocatable, path), nothing)
    ratios = problems.collect(lambda: amplification(top.annotations, top.path), None)
    return Node(
        name=top.name,
        uid=top.uid,
        labels=top.labels,
        taints=problems.collect(lambda: _taints(spec.taints or [], top.path.at("spec.taints")), ()),
        unschedulable=bool(spec.unschedulable),
        # A node without allocatable pods admits none (NodeResourcesFit of kube-scheduler).
        allocatable={PODS: 0, **allocatable},
        numa_policy=_labelled(
            top, (names.NODE_NUMA_POLICY, names.NODE_NUMA_POLICY_PROPOSED), NUMA_POLICIES, problems, NumaPolicy.NONE
        ),
        bind_policy=_labelled(top, (names.NODE_BIND_POLICY,), BIND_POLICIES, problems, NodeBindPolicy.NONE),
        strategy=_labelled(top, (names.NODE_NUMA_STRATEGY, names.NODE_NUMA_STRATEGY_PROPOSED), STRATEGIES, problems),
        amplification=ratios or {},
        reservation=problems.collect(lambda: reservation(top.annotations, top.path), NodeReservation()),
        # ``None`` and empty differ: ``None`` is an old kubelet, an empty list is a kubelet with none of the features.
        features=None if status.declared_features is None else frozenset(status.declared_features),
        problem=problems.problem,
        unread=(
            *unread_node_keys(top.labels, top.annotations),
            *unread_members(top.annotations, {names.RESERVATION: Reservation}),
            *unread_ratios(ratios or ()),
        ),
        # A new boot or kubelet version invalidates the options observed before.
        kubelet=f"{life.node_info.boot_id or ''} {life.node_info.kubelet_version or ''}" if life.node_info else "",
        kubelet_since=_ready_since(life.conditions or (), top.path.at("status.conditions")),
        images=node_images(top.body.get("status")),
    )


def _ready_since(conditions: Iterable[ConditionModel], path: FieldPath) -> float:
    """Return when the condition ``Ready`` became true, in seconds since the epoch. 0 if it is not true or has no time."""
    for one in conditions:
        if one.type == "Ready" and one.status == "True" and (text := one.last_transition_time):
            return Problems().collect(partial(read_time, text, path), 0.0)
    return 0.0


def _labelled(
    top: Head, keys: tuple[str, ...], words: EnumReader[T], problems: Problems, empty: T | None = None
) -> T | None:
    """
    Return the value of the first of these labels that is not empty. The current name comes before the proposal's name.

    ``None`` without any of these labels, ``empty`` if all present labels are empty.
    """
    for key in keys:
        word = top.labels.get(key)
        # An empty label is skipped like an absent one, but it still selects ``empty`` below.
        if word:
            return problems.collect(partial(words.read, word, top.path.label(key)), None)
    return empty if any(key in top.labels for key in keys) else None


def _taints(models: list[TaintModel], path: FieldPath) -> tuple[Taint, ...]:
    return tuple(
        Taint(key=model.key, effect=TAINT_EFFECTS.read(model.effect, path.at("effect")), value=model.value or "")
        for model in models
    )
