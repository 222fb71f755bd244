"""
The interface of hint providers: requests, and answers by resource.

A provider handles one kind of resource. It does not see hints of other providers, and does not decide.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.numa.hint_rule import HintRule
from koord_numa.core.numa.hints import ANYWHERE, NOWHERE, Hint

Takes = Sequence[Hint] | HintRule
"""One dimension of a merge: a list of hints, or a rule (the kubelet's managers)."""

Hints = Takes | None
"""Hints of a resource. ``None``: no preference. Empty: impossible on this node."""

Answer = Mapping[str, Hints] | None
"""Answer of a provider, by resource in merge order. ``None`` and ``{}`` mean no preference."""

AskT_contra = TypeVar("AskT_contra", contravariant=True)


class HintProvider(Protocol[AskT_contra]):
    """An allocator of a resource of a node. From the Node Topology Manager proposal, "New Interfaces"."""

    def hints(self, ask: AskT_contra) -> Answer:
        """Return the sets of NUMA nodes that could serve this request. Allocates nothing."""
        ...


def hints_of(takes: Takes, widest: int = MAX_NUMA) -> Iterable[Hint]:
    """Return the hints. Those of a rule are limited to ``widest`` NUMA nodes."""
    return takes.hints(widest) if isinstance(takes, HintRule) else takes


class ResourceHints(NamedTuple):
    """The hints of a resource in a merge. ``stated`` is the answer of its provider."""

    resource: str
    takes: Takes
    stated: Hints

    @property
    def impossible(self) -> bool:
        """Return whether no set of NUMA nodes can serve the resource."""
        return self.stated is not None and not self.stated


def gather(providers: Iterable[HintProvider[AskT_contra]], ask: AskT_contra) -> list[Answer]:
    """Return the answers of all providers, in their order."""
    return [provider.hints(ask) for provider in providers]


def resource_hints(answers: Iterable[Answer]) -> list[ResourceHints]:
    """
    Return one dimension per resource, in the order of the providers. A provider without an answer accepts any set.

    An impossible resource gives "any, not preferred", so that best-effort can admit the pod. As filterProvidersHints of
    the kubelet and of Koordinator's topologymanager/policy.go.
    """
    dimensions: list[ResourceHints] = []
    for answer in answers:
        # ``None`` and ``{}`` are equal: the kubelet tests ``len(hints) == 0`` first.
        if not answer:
            dimensions.append(ResourceHints("", (ANYWHERE,), None))
            continue
        for resource, stated in answer.items():
            # "No preference" prefers any set, "impossible" prefers none.
            takes = (ANYWHERE,) if stated is None else stated or (NOWHERE,)
            dimensions.append(ResourceHints(resource, takes, stated))
    return dimensions
