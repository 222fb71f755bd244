"""Nodes: what they offer, whom they keep away, and Koordinator's labels. A malformed label makes the node unusable, visibly."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from koord_numa.core.constraints import TaintEffect
from koord_numa.core.node import Node, NodeReservation, Taint
from koord_numa.core.vocabulary import NodeBindPolicy, NumaAllocateStrategy, NumaPolicy
from koord_numa.wire import names
from koord_numa.wire.errors import FieldPath
from koord_numa.wire.metadata import Head, head
from koord_numa.wire.node_annotations import amplification, reservation
from koord_numa.wire.parsing import EnumReader, Problems, Quantity, Strict, T, read
from koord_numa.wire.pod_annotations import NUMA_POLICIES
from koord_numa.wire.quantities import supplied

BIND_POLICIES: Final = EnumReader(
    {"None": NodeBindPolicy.NONE} | {policy.value: policy for policy in NodeBindPolicy},
    also={"PCPUOnly": NodeBindPolicy.FULL_PCPUS_ONLY},  # the proposal's first name for it
)
TAINT_EFFECTS: Final = EnumReader({effect.value: effect for effect in TaintEffect})
STRATEGIES: Final = EnumReader({strategy.value: strategy for strategy in NumaAllocateStrategy})


class TaintModel(Strict):
    """One taint."""

    key: str
    value: str | None = None
    effect: str


class NodeSpec(Strict):
    """The part of a node's spec that scheduling looks at."""

    taints: list[TaintModel] | None = None
    unschedulable: bool | None = None


class NodeStatus(Strict):
    """What the node offers."""

    allocatable: dict[str, Quantity] | None = None


def parse_node(obj: Mapping[str, Any]) -> Node:
    """
    The node in an API object; ``Node.problem`` names what is malformed.

    Raises ``WireError`` only when the object has no name.
    """
    findings = Problems()
    top = head(obj, "Node", findings)
    spec = findings.of(lambda: read(NodeSpec, top.body.get("spec") or {}, top.place.at("spec")), NodeSpec())
    status = findings.of(lambda: read(NodeStatus, top.body.get("status") or {}, top.place.at("status")), NodeStatus())
    ratios = findings.of(lambda: amplification(top.annotations, top.place), None)
    return Node(
        name=top.name,
        uid=top.uid,
        labels=top.labels,
        taints=findings.of(lambda: _taints(spec.taints or [], top.place.at("spec.taints")), ()),
        unschedulable=bool(spec.unschedulable),
        allocatable=findings.of(lambda: supplied(status.allocatable, top.place.at("status.allocatable")), {}),
        numa_policy=_labelled(top, (names.NODE_NUMA_POLICY, names.NODE_NUMA_POLICY_PROPOSED), NUMA_POLICIES, findings)
        or NumaPolicy.NONE,
        bind_policy=_labelled(top, (names.NODE_BIND_POLICY,), BIND_POLICIES, findings) or NodeBindPolicy.NONE,
        strategy=_labelled(top, (names.NODE_NUMA_STRATEGY, names.NODE_NUMA_STRATEGY_PROPOSED), STRATEGIES, findings),
        amplification=ratios or {},
        reservation=findings.of(lambda: reservation(top.annotations, top.place), NodeReservation()),
        problem=findings.problem,
    )


def _labelled(top: Head, keys: tuple[str, ...], words: EnumReader[T], findings: Problems) -> T | None:
    """The value of the first of these labels that says something; today's name comes before the proposal's."""
    for key in keys:
        word = top.labels.get(key)
        if word:
            return findings.of(partial(words.read, word, top.place.label(key)), None)
    return None


def _taints(models: list[TaintModel], place: FieldPath) -> tuple[Taint, ...]:
    return tuple(
        Taint(key=model.key, effect=TAINT_EFFECTS.read(model.effect, place.at("effect")), value=model.value or "")
        for model in models
    )
