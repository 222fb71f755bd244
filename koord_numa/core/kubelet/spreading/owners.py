"""
Whose loose CPUs may be: those that an init container of one pod or of another one may hold.

Theory. A loose CPU is free, or an init container of one of its owners holds it. Where a pod has room only if some of the loose CPUs are
free, nothing tells which of them stay held: each that is left is of any of their owners, and so is what the pod's own init container may
leave. Two hypotheses that differ only in whose loose CPUs are become one whose CPUs have the owners of both. What owners can hold in one
of them they can hold in that one: each CPU is there, with its owner among others. Where an owner leaves, the CPU stays loose for the rest.

Example: 2 CPUs are free, and a third is loose, of pod a. ``init 1, app 2`` comes. If a holds the third CPU, the app gets the CPU of its
init container again; if not, that may stay held beside the app's. In either case none is free then, and a or the new pod may hold one.
"""

from collections.abc import Iterable, Sequence

from koord_numa.core.bit_sets import members
from koord_numa.core.kubelet.inference.hypothesis import SOMEONE, Hypothesis
from koord_numa.core.kubelet.spreading.places import places_of
from koord_numa.core.objects.vocabulary import ContainerKind

Owners = frozenset[str]
"""Of one CPU, by uid."""


def owners_of(one: Hypothesis, bits: int = -1) -> dict[int, Owners]:
    """The owners of each of these CPUs that is loose, by CPU."""
    found: dict[int, Owners] = {}
    for uid, loose in one.loose.items():
        for cpu in members(loose & bits):
            found[cpu] = found.get(cpu, frozenset()) | {uid}
    return found


def has_shared(one: Hypothesis) -> bool:
    """Has a loose CPU several owners? Then what one of them leaves depends on who else is there."""
    return any(len(owners) > 1 for owners in owners_of(one).values())


def may_share(one: Hypothesis, uids: Iterable[str]) -> bool:
    """Is it known of all of these pods in which places their CPUs are, and has each of them an init container?"""
    return all(
        uid != SOMEONE
        # Without alignment there is one place.
        and not (one.state.node.aligns and uid in one.spread | one.mixed)
        and uid in one.state.pods
        and any(each.kind is ContainerKind.INIT for each in one.state.pods[uid].grant.containers)
        for uid in uids
    )


def more_owners(one: Hypothesis, other: Hypothesis) -> dict[str, int] | None:
    """
    Which CPUs each pod may hold besides for one hypothesis to stand for another one, too, that has the same pods in the same places and as
    much surely held; ``None`` where CPUs without a known place are among them.
    """
    more: dict[str, int] = {}
    for here in places_of(one.state.node):
        known, missing = owners_of(one, here), list(owners_of(other, here).values())
        left = _without_known(known, missing)
        spare = [*left, *members(one.state.managers.cpus & here)]
        if len(missing) > len(spare):
            return None
        for owners in missing:
            # The one that has most of them, and of CPUs that are loose rather than free ones.
            cpu = max(spare, key=lambda cpu: len(known.get(cpu, frozenset()) & owners))
            spare.remove(cpu)
            for uid in sorted(owners - known.get(cpu, frozenset())):
                more[uid] = more.get(uid, 0) | 1 << cpu
    touched = set(more) | {uid for uid, bits in one.loose.items() for each in more.values() if bits & each}
    return more if may_share(one, touched) else None


def _without_known(known: dict[int, Owners], missing: list[Owners]) -> Sequence[int]:
    """Takes out of ``missing`` what CPUs stand for already; those that stand for nothing there, first those with fewest owners."""
    left = sorted(known, key=lambda cpu: len(known[cpu]))
    for owners in sorted(missing, key=len, reverse=True):
        cpu = next((cpu for cpu in left if owners <= known[cpu]), None)
        if cpu is not None:
            left.remove(cpu)
            missing.remove(owners)
    return left
