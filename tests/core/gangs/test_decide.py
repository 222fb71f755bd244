"""Decisions about groups on machines that are numbers: minimal counts, orders, topology domains."""

from collections.abc import Sequence

from koord_numa.core.objects.gangs import Dialect, GangKey, TopologyLevel
from koord_numa.core.objects.verdicts import Alignment, Placement
from koord_numa.core.scheduling.gangs import Domain, Group, Limits, Member, Placed, Refused, decide_in_steps
from koord_numa.core.value_objects import replace
from tests.steps import finished
from tests.tables import each_row

A, B = (GangKey(Dialect.KOORDINATOR, "default", name) for name in "ab")


class FakeTrial:
    """Nodes that are a number of CPUs each; the fullest node that fits is chosen, then by name."""

    def __init__(self, nodes: dict[str, int], labels: dict[str, dict[str, str]] | None = None) -> None:
        self.free = dict(nodes)
        self.labels = labels or {}
        self.scheduled: frozenset[str] = frozenset()
        self.unaligned: set[str] = set()
        self.at: dict[str, tuple[str, int]] = {}
        self.choices = 0

    def choose(self, member: Member, nodes: frozenset[str] | None) -> Placement | None:
        self.choices += 1
        size = member.size[0]
        fitting = [n for n, free in self.free.items() if free >= size and (nodes is None or n in nodes)]
        if not fitting:
            return None
        node = min(fitting, key=lambda name: (self.free[name], name))
        return Placement(node, alignment=Alignment.UNALIGNED if node in self.unaligned else Alignment.ALIGNED)

    def assume(self, member: Member, placement: Placement) -> None:
        self.free[placement.node] -= member.size[0]
        self.at[member.uid] = (placement.node, member.size[0])

    def undo(self, *members: Member) -> None:
        for member in members:
            node, size = self.at.pop(member.uid)
            self.free[node] += size

    def domains(self, keys: Sequence[str]) -> Sequence[Domain]:
        found: dict[tuple[str, ...], list[str]] = {}
        for node in self.free:
            own = self.labels.get(node, {})
            if all(key in own for key in keys):
                found.setdefault(tuple(own[key] for key in keys), []).append(node)
        domains = [Domain(",".join(v), frozenset(n), sum(self.free[name] for name in n)) for v, n in found.items()]
        return [domain for domain in domains if self.scheduled <= domain.nodes]


def members(*sizes: int, gang: GangKey = A) -> tuple[Member, ...]:
    return tuple(Member(f"{gang.name}{number}", gang, size, (size,)) for number, size in enumerate(sizes))


def decide(trial: FakeTrial, group: Group, limits: Limits | None = None) -> Placed | Refused:
    before = dict(trial.free)
    answer = finished(decide_in_steps(trial, group, limits)) if limits else finished(decide_in_steps(trial, group))
    assert trial.free == before  # nothing stays assumed
    return answer


def nodes_of(answer: Placed | Refused) -> dict[str, str]:
    assert isinstance(answer, Placed)
    return {uid: placement.node for uid, placement in answer.placements.items()}


@each_row(
    ("nodes", "sizes", "missing", "placed"),
    [
        ({"x": 4, "y": 4}, (4, 4), 2, 2),
        ({"x": 4, "y": 4}, (4, 4, 4), 2, 2),
        ({"x": 4, "y": 4}, (4, 4, 4), 0, 2),
        ({"x": 4, "y": 3}, (2, 2, 3), 3, 3),
        ({"x": 6, "y": 6}, (3, 3, 2, 2, 2), 5, 5),
        ({"x": 4, "y": 4}, (4, 4, 4), 3, None),
        ({"x": 4, "y": 4}, (5,), 0, None),
    ],
    ids=["exact", "min count", "optional", "largest first", "in two", "too many", "no pods"],
)
def test_minimal_counts(nodes: dict[str, int], sizes: tuple[int, ...], missing: int, placed: int | None) -> None:
    answer = decide(FakeTrial(nodes), Group(members(*sizes), {A: missing}))
    assert (len(answer.placements) if isinstance(answer, Placed) else None) == placed


def test_every_gang_of_a_group_has_its_own_minimal_count() -> None:
    both = members(2, 2) + members(2, 2, gang=B)
    assert isinstance(decide(FakeTrial({"x": 6}), Group(both, {A: 1, B: 2})), Placed)
    refused = decide(FakeTrial({"x": 6}), Group(both, {A: 2, B: 2}))
    assert isinstance(refused, Refused)
    assert (refused.gang, len(refused.beside), refused.missing) == (B, 3, 4)


def test_members_move_for_one_that_fits_nowhere() -> None:
    class Picky(FakeTrial):
        """The small node takes anything; members of 1 prefer the large one, where alone members of 3 fit."""

        def choose(self, member: Member, nodes: frozenset[str] | None) -> Placement | None:
            wanted = ("large",) if member.size[0] == 3 else ("large", "small")
            for node in wanted:
                if self.free[node] >= member.size[0] and (nodes is None or node in nodes):
                    return Placement(node)
            return None

    first = tuple(Member(f"s{n}", A, 1, (1,)) for n in range(2))
    big = Member("big", A, 3, (3,))
    # Sizes that mislead: the small members come first.
    group = Group((*(Member(m.uid, A, 1, (1, 9)) for m in first), big), {A: 3})
    answer = decide(Picky({"large": 3, "small": 2}), group)
    assert nodes_of(answer) == {"big": "large", "s0": "small", "s1": "small"}


RACKS = {f"{rack}{n}": {"rack": rack, "block": "12" if rack in "pq" else "34"} for rack in "pqr" for n in range(2)}


def racks(**free: int) -> FakeTrial:
    return FakeTrial({name: free[name[0]] for name in RACKS}, RACKS)


def test_all_members_go_to_the_fullest_domain_that_takes_them() -> None:
    group = Group(members(2, 2, 2), {A: 3}, (TopologyLevel("rack"),))
    assert {node[0] for node in nodes_of(decide(racks(p=8, q=4, r=2), group)).values()} == {"q"}


def test_a_domain_where_members_are_aligned_is_better() -> None:
    trial = racks(p=8, q=4, r=2)
    trial.unaligned = {"q0", "q1"}
    group = Group(members(2, 2, 2), {A: 3}, (TopologyLevel("rack"),))
    assert {node[0] for node in nodes_of(decide(trial, group)).values()} == {"p"}


def test_late_members_stay_in_the_domain_of_the_running_ones() -> None:
    trial = racks(p=8, q=4, r=1)
    trial.scheduled = frozenset({"r0"})
    late = Group(members(1), {A: 1}, (TopologyLevel("rack"),))
    assert nodes_of(decide(trial, late)) == {"a0": "r0"}
    trial.free.update(r0=0, r1=0)
    assert isinstance(decide(trial, late), Refused)
    trial.scheduled = frozenset({"r0", "p0"})
    assert isinstance(decide(trial, late), Refused)  # two domains: none is right


def test_a_required_domain_is_never_left_and_a_preferred_one_is() -> None:
    wide = Group(members(4, 4, 4), {A: 3}, (TopologyLevel("rack"),))
    refused = decide(racks(p=4, q=4, r=4), wide)
    assert isinstance(refused, Refused)
    assert [(each.name, each.placed) for each in refused.domains] == [("p", 2), ("q", 2), ("r", 2)]
    assert refused.failed == "a2"
    preferred = Group(members(4, 4, 4), {A: 3}, (TopologyLevel("rack", required=False),))
    assert isinstance(decide(racks(p=4, q=4, r=4), preferred), Placed)


def test_two_levels_the_narrow_one_is_given_up_first() -> None:
    levels = (TopologyLevel("block"), TopologyLevel("rack", required=False))
    one_rack = decide(racks(p=4, q=4, r=4), Group(members(4, 4), {A: 2}, levels))
    assert len({node[0] for node in nodes_of(one_rack).values()}) == 1
    one_block = decide(racks(p=4, q=4, r=4), Group(members(4, 4, 4), {A: 3}, levels))
    assert {node[0] for node in nodes_of(one_block).values()} == {"p", "q"}
    assert isinstance(decide(racks(p=4, q=4, r=4), Group(members(4, 4, 4, 4, 4), {A: 5}, levels)), Refused)


def test_a_domain_behind_many_fuller_ones_is_found() -> None:
    nodes = {f"n{number:03}": 2 for number in range(200)} | {"z0": 4, "z1": 4}
    labels = {name: {"rack": name[0] if name.startswith("z") else name} for name in nodes}
    group = Group(members(2, 2, 2, 2), {A: 4}, (TopologyLevel("rack"),))
    trial = FakeTrial(nodes, labels)
    assert set(nodes_of(decide(trial, group)).values()) == {"z0", "z1"}
    # 64 domains in ascending order, then the emptiest
    assert trial.choices < 64 * 3 + 10
    trial.free["z0"] = 3
    refused = decide(trial, group)
    assert isinstance(refused, Refused)
    assert (len(refused.domains), refused.exhausted) == (201, False)
    refused = decide(trial, group, Limits(domain_members=3))
    assert isinstance(refused, Refused)
    assert (len(refused.domains), refused.exhausted) == (64 + 1, True)


def test_domains_that_are_too_small_are_not_tried() -> None:
    class RoomyTrial(FakeTrial):
        def domains(self, keys: Sequence[str]) -> Sequence[Domain]:
            domains = super().domains(keys)
            return [replace(it, rooms=tuple(self.free[name] for name in it.nodes)) for it in domains]

    nodes = {f"n{number:03}": number for number in range(20)}
    trial = RoomyTrial(nodes, {name: {"rack": name} for name in nodes})
    small = [replace(member, cpu=member.size[0]) for member in members(4, 4, 4, 9)]
    group = Group(tuple(small), {A: 3}, (TopologyLevel("rack"),))
    assert set(nodes_of(decide(trial, group)).values()) == {"n012"}
    large = replace(group, missing={A: 4})  # 21 CPUs
    refused = decide(trial, large)
    assert isinstance(refused, Refused)
    assert [domain.name for domain in refused.domains] == ["n019", "n018", "n017", "n016", "n015"]
    # Four nodes of 7 CPUs hold four members of 4 CPUs, although 28 CPUs suffice for five.
    halves = RoomyTrial(dict.fromkeys(("a", "b", "c", "d"), 7), {name: {"rack": "one"} for name in "abcd"})
    many = [replace(member, cpu=4) for member in members(4, 4, 4, 4, 4)]
    refused = decide(halves, Group(tuple(many), {A: 5}, (TopologyLevel("rack"),)))
    assert isinstance(refused, Refused)
    assert (refused.domains[0].placed, halves.choices) == (4, 5)


def test_equal_members_cost_one_choice_each() -> None:
    trial = FakeTrial({f"n{number}": 4 for number in range(50)})
    decide(trial, Group(members(*[2] * 100), {A: 100}))
    assert trial.choices == 100
    trial.choices = 0
    decide(trial, Group(members(*[2] * 101), {A: 101}))
    assert trial.choices == 101


def test_a_search_without_end_is_cut_off() -> None:
    trial = FakeTrial({f"n{number}": 7 for number in range(10)})
    group = Group(members(*[2, 3, 4, 5] * 7), {A: 28})
    answer = decide(trial, group, Limits(extra_choices=20))
    assert isinstance(answer, Refused)
    assert answer.exhausted
    assert trial.choices < 28 * 3 + 3 * 20
