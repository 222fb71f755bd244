"""The rule of a gang: every mode and match policy, and gang groups that contradict themselves."""

from itertools import product

from koord_numa.core.objects.gangs import (
    Dialect,
    GangCounts,
    GangKey,
    GangMode,
    GangSpec,
    MatchPolicy,
    group_of,
    missing,
    wait_for_members,
)
from tests.tables import each_row

ONLY, RUNNING, ONCE = MatchPolicy.ONLY_WAITING, MatchPolicy.WAITING_AND_RUNNING, MatchPolicy.ONCE_SATISFIED
A, B, C = (GangKey(Dialect.KOORDINATOR, "default", name) for name in "abc")

SITUATIONS = {
    "new": GangCounts(waiting=4),
    "one is missing": GangCounts(waiting=3),
    "cut off between binds": GangCounts(waiting=3, scheduled=1),
    "a member was replaced": GangCounts(waiting=1, scheduled=3, satisfied=True),
    "a member too many": GangCounts(waiting=1, scheduled=4, satisfied=True),
    "a second set": GangCounts(waiting=4, scheduled=4, satisfied=True),
}
MISSING = {  # of a gang of four, by situation: what each policy demands
    "new": {ONLY: 4, RUNNING: 4, ONCE: 4},
    "one is missing": {ONLY: 4, RUNNING: 4, ONCE: 4},
    "cut off between binds": {ONLY: 3, RUNNING: 3, ONCE: 3},
    "a member was replaced": {ONLY: 1, RUNNING: 1, ONCE: 0},
    "a member too many": {ONLY: 4, RUNNING: 0, ONCE: 0},
    "a second set": {ONLY: 4, RUNNING: 0, ONCE: 0},
}
WAITS = {("one is missing", policy) for policy in MatchPolicy} | {("a member too many", ONLY)}


@each_row(("mode", "policy", "situation"), list(product(GangMode, MatchPolicy, SITUATIONS)))
def test_modes_and_match_policies(mode: GangMode, policy: MatchPolicy, situation: str) -> None:
    spec, counts = GangSpec(4, match_policy=policy, mode=mode), SITUATIONS[situation]
    assert missing(spec, counts) == MISSING[situation][policy]
    assert bool(wait_for_members(A, spec, counts)) == ((situation, policy) in WAITS)


def test_a_basic_group_waits_for_nobody() -> None:
    assert missing(GangSpec(basic=True), GangCounts(waiting=1)) == 0


def test_the_sentence_counts_members() -> None:
    said = wait_for_members(A, GangSpec(4), GangCounts(waiting=2, scheduled=1))
    assert said == "waiting for minCount pods from a gang to appear in scheduling queue: 3 of 4 pods of default/a exist"


BOTH = ("default/a", "default/b")


@each_row(
    ("specs", "keys", "why"),
    [
        ({A: GangSpec(2)}, (A,), ""),
        ({A: GangSpec(2, group=BOTH), B: GangSpec(3, group=BOTH)}, (A, B), ""),
        ({A: GangSpec(2, group=BOTH), B: GangSpec(3, group=BOTH[::-1])}, (A, B), ""),
        ({}, (A,), 'waiting for pod\'s pod group "a" to appear in scheduling queue'),
        ({A: GangSpec(2, group=BOTH)}, (A, B), "waiting for gang default/b of the gang group of default/a"),
        ({A: GangSpec(2, group=BOTH), B: GangSpec(3)}, (A, B), "gangs default/a and default/b name different gang"),
        ({A: GangSpec(2, group=("default/b",)), B: GangSpec(3)}, (A,), "does not contain default/a itself"),
        (
            {A: GangSpec(2, group=BOTH), B: GangSpec(problem="odd")},
            (A, B),
            "gang default/b of the same gang group: odd",
        ),
        ({A: GangSpec(problem="odd")}, (A,), "odd"),
        ({A: GangSpec(2, group=tuple(f"default/{n}" for n in range(65)))}, (A,), "at most 64 are supported"),
    ],
    ids=[
        "alone",
        "two",
        "another order",
        "unknown",
        "other unknown",
        "contradiction",
        "not itself",
        "broken",
        "own",
        "many",
    ],
)
def test_gang_groups(specs: dict[GangKey, GangSpec], keys: tuple[GangKey, ...], why: str) -> None:
    found, said = group_of(A, specs)
    assert found == keys
    assert why in said if why else not said
