"""
Placement of the members of a group. No member is bound unless every gang has its minimal count.

The search uses a ``Trial``: a snapshot of the cluster in which members are assumed one by one, with all checks of a single pod's decision.
The largest members are placed first. If a member fits on no node, placed members are moved to free its resources. If that fails, the search
restarts with this member first. kube-scheduler tries one order and moves no members (kubernetes#138765).
"""

from collections import Counter
from collections.abc import Generator, Hashable, Iterator, Mapping, Sequence
from enum import Enum
from typing import Final, Protocol, TypeVar

from koord_numa.core.objects.gangs import GangKey, TopologyLevel
from koord_numa.core.objects.verdicts import Alignment, Placement
from koord_numa.core.value_objects import MutableObject, ValueObject, replace, value_field

T = TypeVar("T")
Moved = Mapping[str, Placement]
"""New placements by UID of members that had to be placed again after an interruption."""

Steps = Generator[None, Moved | None, T]
"""Search that other tasks may interrupt at every ``yield``. The caller sends the members that were placed again."""


class Limits(ValueObject):
    """Bounds of a decision about a group."""

    extra_choices: int = 256  # decisions about single members beyond one per member; about 50 ms at 0.2 ms per decision
    orders: int = 6  # attempts with different orders of the members
    chain: int = 2  # successive moves that free resources for a member
    domains: int = 64  # topology domains that are evaluated in ascending order of free CPU
    domain_members: int = 4096  # members that may fail in further domains before these end; about a second
    hopeless_domains: int = 5  # domains that are evaluated only to explain why they are too full


LIMITS: Final = Limits()


class Member(ValueObject):
    """
    Pod of the group without a node. Members of equal ``kind`` have equal requirements.

    ``size`` is the sort key of kinds. In descending order, the largest or most constrained kind is first. ``cpu`` is a lower bound of
    the CPU that a node needs to have free, in milli-CPU.
    """

    uid: str
    gang: GangKey
    kind: Hashable
    size: tuple[int, ...] = ()
    cpu: int = 0


class Domain(ValueObject):
    """
    Nodes with equal values of topology labels. ``name`` has these values. ``free`` is the free CPU in milli-CPU.

    ``rooms`` are upper bounds of the CPU that members can get on each node, ``None`` if there is no bound.
    """

    name: str
    nodes: frozenset[str]
    free: int = 0
    rooms: tuple[int, ...] | None = None


class Group(ValueObject):
    """Input of a decision. ``missing`` is the minimum of members to place by gang, ``levels`` are topology constraints."""

    members: tuple[Member, ...]
    missing: Mapping[GangKey, int]
    levels: tuple[TopologyLevel, ...] = ()


class Pause(Enum):
    """Result of ``Trial.choose`` that is interrupted: call it again after the interruption."""

    PAUSE = "pause"


class Trial(Protocol):
    """Snapshot of the cluster. Assumed members count in later choices until they are undone."""

    def choose(self, member: Member, nodes: frozenset[str] | None) -> Placement | Pause | None:
        """Return the best placement on these nodes (``None``: all nodes); ``None`` if the member fits on no node."""
        ...

    def assume(self, member: Member, placement: Placement) -> None:
        """Assume the member at this placement."""
        ...

    def undo(self, *members: Member) -> None:
        """Release assumed members."""
        ...

    def domains(self, keys: Sequence[str]) -> Sequence[Domain]:
        """Return the domains by these labels that contain all scheduled members of the group."""
        ...


class DomainResult(ValueObject):
    """
    Result of a domain with these nodes: ``placed`` of ``members`` members were placed.

    ``failed`` is the first member that was not, after the placements ``beside``.
    """

    name: str
    placed: int
    members: int
    failed: str = ""
    beside: Mapping[str, Placement] = {}
    nodes: frozenset[str] = frozenset()


class Placed(ValueObject):
    """Placements by UID, in the order of the decisions. ``left`` are members beyond the minimal counts that fit on no node."""

    placements: Mapping[str, Placement]
    left: tuple[str, ...] = ()
    domain: str = ""


class Refused(ValueObject):
    """
    Rejection of a group. ``failed`` is the member that fits on no node after the placements ``beside``, in this order.

    ``domains`` are the results by domain, the best first, for groups with a topology constraint. ``exhausted``: the search reached a limit.
    """

    gang: GangKey
    failed: str
    beside: Mapping[str, Placement]
    missing: int
    nodes: frozenset[str] | None = None
    domains: tuple[DomainResult, ...] = ()
    exhausted: bool = False


class _GroupSearch(MutableObject):
    """Attempts on a set of nodes. ``done`` has the placements in the order of the decisions. ``spare`` bounds further decisions."""

    trial: Trial
    group: Group
    nodes: frozenset[str] | None
    spare: int
    limits: Limits
    done: dict[str, tuple[Member, Placement]] = value_field(default_factory=dict)
    failed: dict[Hashable, Member] = value_field(default_factory=dict)
    moved: bool = False
    stuck: bool = False  # a moved member cannot be restored

    def run(self, order: Sequence[Member]) -> Steps[Member | None]:
        """Place the members in this order. Return the member that makes a minimal count impossible; ``None`` on success."""
        remaining = Counter(member.gang for member in order)
        placed: Counter[GangKey] = Counter()
        for member in order:
            remaining[member.gang] -= 1
            if member.kind not in self.failed and (yield from self._place(member)):
                placed[member.gang] += 1
                continue
            # Members of an equal kind are rejected too.
            first = self.failed.setdefault(member.kind, member)
            if self.stuck or placed[member.gang] + remaining[member.gang] < self.group.missing.get(member.gang, 0):
                return first
        return None if not self.moved or (yield from self._repeat()) else order[0]

    def clear(self) -> None:
        """Release all members, the last member first."""
        self.trial.undo(*[member for member, _ in reversed(self.done.values())])
        self.done.clear()
        self.failed.clear()
        self.moved = self.stuck = False

    def _place(self, member: Member) -> Steps[bool]:
        if (yield from self._put(member, self.nodes)):
            return True
        return (yield from self._make_room(member, self.limits.chain, frozenset()))

    def _put(self, member: Member, nodes: frozenset[str] | None) -> Steps[bool]:
        while isinstance(placement := self.trial.choose(member, nodes), Pause):
            moved = yield
            for uid, elsewhere in (moved or {}).items():
                self.done[uid] = (self.done[uid][0], elsewhere)
        if placement is None:
            return False
        self.trial.assume(member, placement)
        self.done[member.uid] = (member, placement)
        return True

    def _make_room(self, member: Member, depth: int, moving: frozenset[Hashable]) -> Steps[bool]:
        """Move members of other kinds, one at a time, until the member fits. Moves that do not help are reverted."""
        tried: set[tuple[Hashable, str]] = set()
        for other, placement in reversed(list(self.done.values())):
            spot = (other.kind, placement.node)
            if other.kind == member.kind or other.kind in moving or spot in tried:
                continue
            self.spare -= 1
            if self.spare < 0:
                return False
            tried.add(spot)
            self.moved = True
            self._remove(other)
            if (yield from self._put(member, self.nodes)):
                if (yield from self._put(other, self.nodes)):
                    return True
                if depth > 1 and (yield from self._make_room(other, depth - 1, moving | {member.kind})):
                    return True
                self._remove(member)
            if self.stuck or not (yield from self._put(other, frozenset({placement.node}))):
                # The order of the pods of a node matters: after its successors, the other member does not fit any more.
                self.stuck = True
                return False
        return False

    def _remove(self, member: Member) -> None:
        self.trial.undo(member)
        del self.done[member.uid]

    def _repeat(self) -> Steps[bool]:
        """Decide again in the order after the moves, because a kubelet admits the pods of a node in the order of their binds."""
        order = [(member, frozenset({placement.node})) for member, placement in self.done.values()]
        self.clear()
        for member, nodes in order:
            if not (yield from self._put(member, nodes)):
                return False
        return True


def decide_in_steps(trial: Trial, group: Group, limits: Limits = LIMITS) -> Steps[Placed | Refused]:
    """
    Place the members of a group, or return why they cannot be placed. No member stays assumed.

    Domains are tried in ascending order of free CPU (``_domain_order``). The first domain in which every member is placed and aligned is
    chosen; otherwise the domain with the most placed members, then the most aligned members. If no domain fits, preferred levels are
    dropped one by one, the narrowest first.
    """
    first: Refused | None = None
    for keys in _level_sets(trial, group.levels):
        if keys:
            answer = yield from _in_domains(trial, group, keys, limits)
        else:
            answer = yield from _attempt(trial, group, None, limits)
        if isinstance(answer, Placed):
            return answer
        first = first or answer
    return first if first is not None else Refused(group.members[0].gang, "", {}, 0)


def _level_sets(trial: Trial, levels: Sequence[TopologyLevel]) -> Iterator[tuple[str, ...]]:
    """Yield the label keys of all levels, then without preferred levels in descending order of their number of domains."""
    required = [level.key for level in levels if level.required]
    preferred = sorted(
        (level.key for level in levels if not level.required), key=lambda key: (len(trial.domains((key,))), key)
    )
    for count in range(len(preferred), -1, -1):
        yield (*required, *preferred[:count])


def _in_domains(trial: Trial, group: Group, keys: Sequence[str], limits: Limits) -> Steps[Placed | Refused]:
    domains = _domain_order(trial.domains(keys), _least_sizes(group), limits)
    best: tuple[tuple[int, int], Placed] | None = None
    results: list[tuple[DomainResult, Refused]] = []
    members, spare = len(group.members), limits.domain_members
    for number, domain in enumerate(domains):
        if number >= limits.domains and (spare < 0 or best is not None):
            break
        answer = yield from _attempt(trial, group, domain.nodes, limits)
        if isinstance(answer, Refused):
            placed, failed = len(answer.beside), answer.failed
            spare -= (placed + 1) * (number >= limits.domains)
            result = DomainResult(domain.name, placed, members, failed, answer.beside, domain.nodes)
            results.append((result, answer))
            continue
        placements = answer.placements.values()
        aligned = sum(placement.alignment is not Alignment.UNALIGNED for placement in placements)
        found = ((len(placements), aligned), replace(answer, domain=domain.name))
        if found[0] == (members, members):
            return found[1]
        best = found if best is None or found[0] > best[0] else best
    if best is not None:
        return best[1]
    if not results:
        return Refused(group.members[0].gang, "", {}, sum(group.missing.values()))
    results.sort(key=lambda result: -result[0].placed)
    refused = results[0][1]
    return replace(
        refused,
        domains=tuple(result for result, _ in results),
        exhausted=refused.exhausted or len(results) < len(domains),
    )


def _may_hold(domain: Domain, sizes: Sequence[int]) -> bool:
    """Necessary condition: the nodes have room for as many members as ``sizes`` (CPU in milli-CPU), the smallest of the group."""
    if domain.rooms is None or not sizes:
        return True
    smallest = max(1, min(sizes))
    return sum(domain.rooms) >= sum(sizes) and sum(room // smallest for room in domain.rooms) >= sum(map(bool, sizes))


def _least_sizes(group: Group) -> list[int]:
    """Return the CPU of the smallest members that satisfy the minimal counts, in milli-CPU."""
    sizes: dict[GangKey, list[int]] = {}
    for member in group.members:
        sizes.setdefault(member.gang, []).append(member.cpu)
    return [cpu for gang, its in sizes.items() for cpu in sorted(its)[: group.missing.get(gang, 0)]]


def _domain_order(domains: Sequence[Domain], sizes: Sequence[int], limits: Limits) -> list[Domain]:
    """
    Return the domains to try, without domains that are too small for members of these sizes.

    The fullest domains are first, so that empty domains stay whole. After ``Limits.domains`` domains the emptiest are next: they fit if any
    domain does, unless members are restricted to certain nodes. If all domains are too small, the emptiest explain the rejection.
    """
    fullest = sorted(domains, key=lambda domain: (domain.free, domain.name))
    emptiest = sorted(domains, key=lambda domain: (-domain.free, domain.name))
    fitting = [domain for domain in fullest if _may_hold(domain, sizes)]
    if not fitting:
        return emptiest[: limits.hopeless_domains]
    rest = set(fitting[limits.domains :])
    return fitting[: limits.domains] + [domain for domain in emptiest if domain in rest]


def _attempt(trial: Trial, group: Group, nodes: frozenset[str] | None, limits: Limits) -> Steps[Placed | Refused]:
    """Try orders of the members on these nodes. A member that fits on no node is first in the next order."""
    search = _GroupSearch(trial, group, nodes, limits.extra_choices, limits)
    orders = _orders(group)
    best: Refused | None = None
    for _ in range(limits.orders):
        order = orders.pop(0)
        failed = yield from search.run(order)
        done = {uid: placement for uid, (_, placement) in search.done.items()}
        search.clear()
        if failed is None and done:
            left = tuple(member.uid for member in group.members if member.uid not in done)
            return Placed(done, left)
        blocker = failed or order[0]
        refused = Refused(blocker.gang, blocker.uid, done, sum(group.missing.values()), nodes)
        best = refused if best is None or len(refused.beside) > len(best.beside) else best
        search.spare -= len(done)
        following = sorted(order, key=lambda member: member.kind != blocker.kind)
        if not orders and failed is not None and following != order:
            orders.append(following)
        if not orders or search.spare < 0:
            break
    if best is None:
        raise AssertionError("a group was decided on without an attempt")
    return replace(best, exhausted=search.spare < 0)


def _orders(group: Group) -> list[list[Member]]:
    """Return two orders. They start with the missing number of members of each gang: the largest members, or the smallest."""
    largest = _largest_first(group.members)
    orders = [_needed_first(largest, group.missing), _needed_first(largest[::-1], group.missing)]
    first, second = ([member.kind for member in order] for order in orders)
    return orders[:1] if first == second else orders


def _needed_first(members: Sequence[Member], missing: Mapping[GangKey, int]) -> list[Member]:
    left, needed, others = dict(missing), [], []
    for member in members:
        if left.get(member.gang, 0) > 0:
            left[member.gang] -= 1
            needed.append(member)
        else:
            others.append(member)
    return _largest_first(needed) + _largest_first(others)


def _largest_first(members: Sequence[Member]) -> list[Member]:
    return sorted(members, key=lambda member: tuple(-part for part in member.size))
