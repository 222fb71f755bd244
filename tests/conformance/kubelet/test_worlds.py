"""The histories among which witnesses are looked for: the recorded one is one of them, and each agrees with what was shown."""

from itertools import islice
from pathlib import Path
from random import Random

from koord_numa.core.value_objects import replace
from tests.conformance.kubelet.aims.aimed import aimed
from tests.conformance.kubelet.aims.refusals import refused_by_scheduler, refusing
from tests.conformance.kubelet.aims.wandering import wandering
from tests.conformance.kubelet.caches import other_caches
from tests.conformance.kubelet.churn import class_of
from tests.conformance.kubelet.departures import Branch, Departures, Script, graded, replayed, windows
from tests.conformance.kubelet.early import early_histories
from tests.conformance.kubelet.variants import variant
from tests.conformance.kubelet.witness import Search
from tests.conformance.kubelet.worlds import NEVER, Recorded, World, agrees
from tests.conformance.vectors import cases, each_file

LONG = 20
"""Of the sequences one in so many, for time."""

EARLY = 40
"""Of the first so many events a question is looked for, for time."""

FEW = 10
"""So many nodes are drawn for one question, for time."""


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
def test_nodes_with_other_uncore_caches_agree_with_all_that_was_shown(file: Path) -> None:
    tried = 0
    for number, case in enumerate(cases(file)):
        if number % LONG:
            continue
        recorded = Recorded(case)
        truth = World(recorded, recorded.node, recorded.ends)
        asked = (at for at, event in enumerate(recorded.events[: case.get("leak_from", NEVER)]) if event["ev"] == "ask")
        index = next(asked)
        for world, played in islice(other_caches(truth, index, Random(number)), FEW):
            tried += 1
            assert not any(shown < index for _, shown in world.play(index).wrong)
            assert len(played.states) == index + 1
            for numa, bits in world.node.machine.numa_bits.items():
                assert bits.bit_count() == recorded.node.machine.numa_bits[numa].bit_count()
    assert tried


@each_file("kubelet-churn")
def test_histories_aimed_at_a_refusal_agree_with_all_that_was_shown(file: Path) -> None:
    tried = 0
    for case in cases(file):
        recorded = Recorded(case)
        refused = [at for at, event in enumerate(recorded.events[:EARLY]) if event.get("kubelet_admits") is False]
        if not refused or not recorded.node.pins_cpus or refused_by_scheduler(recorded, refused[0]) is None:
            continue
        truth = World(recorded, recorded.node, recorded.ends)
        script = Script(truth.ends).before(refused[0] + 1)
        for world, branch in islice(aimed(truth, script, refused[0], Random(tried)), FEW):
            tried += 1
            again = replayed(world, branch.script, refused[0])
            assert again is not None
            assert again.managers == branch.state.managers
        if tried > LONG:
            break
    assert tried


@each_file("kubelet-churn")
def test_histories_on_nodes_with_any_devices_agree_with_all_that_was_shown(file: Path) -> None:
    other = 0
    for case in islice((case for case in cases(file) if class_of(case) == "D"), FEW):
        recorded = Recorded(case)
        truth = World(recorded, recorded.node, recorded.ends)
        index = next(at for at, event in reversed([*enumerate(recorded.events)]) if event["ev"] == "ask")
        script = Script(truth.ends).before(index + 1)
        for world, branch in islice(wandering(truth, script, index, Random(index)), FEW):
            again = replayed(world, branch.script, index)
            assert again is not None
            assert again.managers == branch.state.managers
            for name, pool in world.node.devices.items():
                was = recorded.node.devices[name]
                assert len(pool.devices) == len(was.devices)
                assert all(pool.near(1 << numa).bit_count() == bits.bit_count() for numa, bits in was.on.items())
                other += pool.devices != was.devices
    assert other


@each_file("kubelet-churn")
def test_where_the_kubelet_refuses_the_recorded_history_is_the_witness(file: Path) -> None:
    case = next(iter(cases(file)))
    recorded = Recorded(case)
    refused = {
        index for index, event in enumerate(recorded.events) if event["ev"] == "ask" and not event["kubelet_admits"]
    }
    found = Search(recorded, set(refused)).run()
    assert found.keys() == refused


@each_file("kubelet-churn")
def test_the_recorded_departures_lie_within_what_was_shown(file: Path) -> None:
    for number, case in enumerate(cases(file)):
        if number % LONG:
            continue
        recorded = Recorded(case)
        for index, event in enumerate(recorded.events):
            if event["ev"] != "ask":
                continue
            for uid, (first, last) in windows(recorded, index).items():
                assert first <= min(recorded.ends.get(uid, NEVER), index) <= last, f"{case['id']} event {index}: {uid}"


@each_file("kubelet-churn")
def test_histories_with_other_departures_agree_when_they_are_played_again(file: Path) -> None:
    for number, case in enumerate(cases(file)):
        if number % LONG:
            continue
        recorded = Recorded(case)
        truth = World(recorded, recorded.node, recorded.ends)
        index = min(
            case.get("leak_from", NEVER), max(at for at, event in enumerate(recorded.events) if event["ev"] == "ask")
        )
        first = max(0, index - LONG)
        begin = Branch(truth.play(first).states[first], Script(truth.ends).before(first))
        found = Departures(truth, index, Random(number)).run_on([begin], first, index)
        assert found
        for branch in found:
            again = replayed(truth, branch.script, index)
            assert again is not None
            assert again.managers == branch.state.managers
            assert again.pods.keys() == branch.state.pods.keys()


@each_file("kubelet-churn")
def test_only_histories_that_agree_with_what_was_shown_are_without_differences(file: Path) -> None:
    for number, case in enumerate(cases(file)):
        if number % LONG:
            continue
        recorded, dice = Recorded(case), Random(number)
        index = min(case.get("leak_from", NEVER), LONG, len(recorded.events))
        truth = World(recorded, recorded.node, recorded.ends)
        script = Script(truth.ends).before(index + 1)
        for world in (truth, *(replace(truth, node=variant(recorded, dice)) for _ in range(FEW))):
            differences, state = graded(world, script, index)
            again = replayed(world, script, index)
            assert (again is not None) is (differences == 0)
            assert again is None or again.managers == state.managers
        assert graded(truth, script, index)[0] == 0


@each_file("kubelet-churn")
def test_pods_that_come_early_change_nothing_that_was_shown(file: Path) -> None:
    tried = 0
    for number, case in enumerate(cases(file)):
        if number % LONG:
            continue
        recorded = Recorded(case)
        last = len(recorded.events)
        for early in early_histories(recorded, 0, last, Random(number)):
            tried += 1
            came = sorted(early.begins, key=early.begins.__getitem__)
            assert came == sorted(recorded.begins, key=recorded.begins.__getitem__)  # in the order of their binds
            assert all(at <= recorded.begins[uid] for uid, at in early.begins.items())
            for uid, at in recorded.begins.items():
                assert early.shown[early.begins[uid]] == recorded.shown[at]
            for at, event in enumerate(recorded.events):
                if event["ev"] not in ("bind", "pod", "seen"):
                    assert early.events[at] == event
                    assert early.shown.get(at) == recorded.shown.get(at)
    assert tried


@each_file("kubelet-churn")
def test_a_history_that_contradicts_what_was_shown_is_no_witness(file: Path) -> None:
    for case in cases(file):
        recorded = Recorded(case)
        truth = World(recorded, recorded.node, recorded.ends)
        shown = [end for end in recorded.ends.values() if recorded.shown[end] < NEVER]
        if not shown:
            continue
        index = max(recorded.shown[end] for end in shown) + 1
        assert replayed(truth, Script({}), index) is None  # pods that were shown to be gone have stayed
        return
    raise AssertionError("no sequence shows an end")
