"""
What is asked of hint providers and what they answer, resource by resource; and the store of what was decided.

A provider knows one kind of resource. It never sees another provider's hints, and it does not decide.
"""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple, Protocol, TypeVar

from koord_numa.core.cpu_topology import MAX_NUMA
from koord_numa.core.numa.counted import Counted
from koord_numa.core.numa.hints import ANYWHERE, NOWHERE, Hint

Takes = Sequence[Hint] | Counted
"""One dimension of a merge: a list of hints, or one by arithmetic."""

Hints = Takes | None
"""Of one resource: ``None`` = no preference; nothing in it = impossible on this node."""

Answer = Mapping[str, Hints] | None
"""Of one provider, by resource in the order in which they are to be merged. ``None`` and ``{}`` are "nothing to say"."""

AskT_contra = TypeVar("AskT_contra", contravariant=True)
KeyT = TypeVar("KeyT")


class HintProvider(Protocol[AskT_contra]):
    """Whoever hands out some resource of a node. From the Node Topology Manager proposal, "New Interfaces"."""

    def hints(self, ask: AskT_contra) -> Answer:
        """Where could this request be served? Nothing is held by asking."""
        ...


class Affinities(dict[KeyT, Hint]):
    """
    The store: the merged hint of every pod, or container, that was admitted, by whatever key tells them apart.

    Providers look here when they hand out; whoever was never asked about may go anywhere.
    """

    def __missing__(self, key: KeyT) -> Hint:
        return ANYWHERE


def hints_of(takes: Takes, widest: int = MAX_NUMA) -> Iterable[Hint]:
    """The hints as a list; of a counted resource those on up to ``widest`` NUMA nodes."""
    return takes.hints(widest) if isinstance(takes, Counted) else takes


class Wish(NamedTuple):
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


def wishes(answers: Iterable[Answer]) -> list[Wish]:
    """
    One dimension a resource, in the providers' order; a provider with nothing to say is a dimension that takes anything.

    An impossible resource takes "any, not preferred", so that best-effort can live with it. As the kubelet's
    filterProvidersHints and Koordinator's, topologymanager/policy.go.
    """
    dimensions: list[Wish] = []
    for answer in answers:
        if not answer:
            dimensions.append(Wish("", (ANYWHERE,), None))
            continue
        for resource, stated in answer.items():
            takes = (ANYWHERE,) if stated is None else stated or (NOWHERE,)
            dimensions.append(Wish(resource, takes, stated))
    return dimensions


def whole_pod(containers: Iterable[Iterable[Answer]]) -> Iterator[Answer]:
    """
    The answers for all containers as one merge, so that they agree on one set of NUMA nodes.

    From the Node Topology Manager proposal, pod-level-single-numa-node; to be decided under single-numa-node. What the
    containers take of one resource must be counted together by its provider: the merge cannot see that amounts add up.
    """
    return (answer for answers in containers for answer in answers)
