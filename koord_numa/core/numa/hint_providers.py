"""
What is asked of hint providers and what they answer, resource by resource.

A provider knows one kind of resource. It never sees another provider's hints, and it does not decide.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.numa.hint_rule import HintRule
from koord_numa.core.numa.hints import ANYWHERE, NOWHERE, Hint

Takes = Sequence[Hint] | HintRule
"""One dimension of a merge: a list of hints, or a rule (the kubelet's managers)."""

Hints = Takes | None
"""Of one resource: ``None`` = no preference; nothing in it = impossible on this node."""

Answer = Mapping[str, Hints] | None
"""Of one provider, by resource in the order in which they are to be merged. ``None`` and ``{}`` are "nothing to say"."""

AskT_contra = TypeVar("AskT_contra", contravariant=True)


class HintProvider(Protocol[AskT_contra]):
    """A part that hands out some resource of a node. From the Node Topology Manager proposal, "New Interfaces"."""

    def hints(self, ask: AskT_contra) -> Answer:
        """Where could this request be served? Nothing is held by asking."""
        ...


def hints_of(takes: Takes, widest: int = MAX_NUMA) -> Iterable[Hint]:
    """The hints as a list; of a rule those on up to ``widest`` NUMA nodes."""
    return takes.hints(widest) if isinstance(takes, HintRule) else takes


class ResourceHints(NamedTuple):
    """What one resource would take. ``stated`` is its provider's own answer."""

    resource: str
    takes: Takes
    stated: Hints

    @property
    def impossible(self) -> bool:
        """Is there no set of NUMA nodes at all that could serve it?"""
        return self.stated is not None and not self.stated


def gather(providers: Iterable[HintProvider[AskT_contra]], ask: AskT_contra) -> list[Answer]:
    """Ask all providers, in their order."""
    return [provider.hints(ask) for provider in providers]


def resource_hints(answers: Iterable[Answer]) -> list[ResourceHints]:
    """
    One dimension a resource, in the providers' order; a provider with nothing to say is a dimension that takes anything.

    An impossible resource takes "any, not preferred", so that best-effort can live with it. As the kubelet's
    filterProvidersHints and Koordinator's, topologymanager/policy.go.
    """
    dimensions: list[ResourceHints] = []
    for answer in answers:
        # ``None`` and ``{}`` alike: the kubelet tests ``len(hints) == 0`` before it looks at a resource.
        if not answer:
            dimensions.append(ResourceHints("", (ANYWHERE,), None))
            continue
        for resource, stated in answer.items():
            # "No preference" and "impossible" are different: the first prefers anything, the second prefers nothing.
            takes = (ANYWHERE,) if stated is None else stated or (NOWHERE,)
            dimensions.append(ResourceHints(resource, takes, stated))
    return dimensions
