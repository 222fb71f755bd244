"""The histories among which witnesses are looked for: the recorded one is one of them, and each agrees with what was shown."""

from pathlib import Path
from random import Random

from tests.conformance.kubelet.variants import variant
from tests.conformance.kubelet.witness import Search, refusing
from tests.conformance.kubelet.worlds import NEVER, Recorded, World, agrees
from tests.conformance.vectors import cases, each_file

LONG = 20
"""Of the sequences one in so many, for time."""


@each_file("kubelet-churn")
def test_the_recorded_history_gives_every_recorded_verdict_and_scan(file: Path) -> None:
    for number, case in enumerate(cases(file)):
        if number % LONG:
            continue
        recorded = Recorded(case)
        played = World(recorded, recorded.node, recorded.ends).play(len(recorded.events))
        leaks = case.get("leak_from", NEVER)
        assert not [wrong for wrong in played.wrong if wrong[0] < leaks], case["id"]
        for index, event in enumerate(recorded.events[:leaks]):
            if event["ev"] == "ask":
                refused = refusing(played.states[index], recorded.requests[event["pod"]], 0)
                assert bool(refused) is not event["kubelet_admits"], f"{case['id']} event {index}: {refused}"


@each_file("kubelet-churn")
def test_a_variant_lists_what_the_recorded_node_lists(file: Path) -> None:
    for number, case in enumerate(cases(file)):
        if number % LONG:
            continue
        recorded, dice = Recorded(case), Random(number)
        for _ in range(10):
            node = variant(recorded, dice)
            empty = World(recorded, node, {}).play(0).states[0]
            first = next(event["nrt"] for event in recorded.events if event["ev"] == "scan")
            amounts: dict[str, list[int | None]] = {}
            for place, zone in enumerate(first["zones"]):
                for row in zone["resources"]:
                    listed = amounts.setdefault(row["name"], [None] * len(first["zones"]))
                    listed[place] = int(row["allocatable"])
            assert agrees(recorded, empty, {"available": amounts}), case["id"]
            for name, pool in node.devices.items():
                known = {numa: bits.bit_count() for numa, bits in recorded.node.devices[name].on.items()}
                assert {numa: bits.bit_count() for numa, bits in pool.on.items()} == known


@each_file("kubelet-churn")
def test_where_the_kubelet_refuses_the_recorded_history_is_the_witness(file: Path) -> None:
    case = next(iter(cases(file)))
    recorded = Recorded(case)
    refused = {
        index for index, event in enumerate(recorded.events) if event["ev"] == "ask" and not event["kubelet_admits"]
    }
    found = Search(recorded, set(refused)).run()
    assert found.keys() == refused
