"""Nodes with uncore caches of any shape: a scheduler cannot tell them from the recorded one. On those that are kept a pod is refused."""

from collections import Counter
from itertools import islice
from pathlib import Path
from random import Random
from typing import Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.kubelet.admit import Admitted, admit
from tests.conformance.kubelet.aims.shaping import KEPT, kept, shaping
from tests.conformance.kubelet.caches import caches_matter
from tests.conformance.kubelet.departures import Script, replayed
from tests.conformance.kubelet.variants import possible_threads
from tests.conformance.kubelet.witness import Search
from tests.conformance.kubelet.worlds import Recorded, World
from tests.conformance.vectors import cases, each_file

EVERY: Final = 60
"""Of the sequences one in so many, for time."""

EARLY: Final = 60
"""Of the first so many events a question is looked for, for time."""

FEW: Final = 10
"""So many histories of each."""


@each_file("kubelet-churn")
def test_nodes_with_caches_of_any_shape_agree_with_all_that_was_shown(file: Path) -> None:
    found: Counter[int] = Counter()
    for number, case in enumerate(cases(file)):
        if number % EVERY:
            continue
        recorded = Recorded(case)
        truth = World(recorded, recorded.node, recorded.ends)
        asked = [at for at, event in enumerate(recorded.events[:EARLY]) if event["ev"] == "ask"]
        index = max(asked, default=0)
        if not caches_matter(recorded, index):
            continue
        reserved = recorded.node.config.reserved_cpus or CpuSet()
        for world, branch in islice(shaping(truth, Script(recorded.ends).before(index + 1), index, Random(1)), FEW):
            found[number] += 1
            state = replayed(world, branch.script, index)
            assert state is not None
            assert state.managers == branch.state.managers
            assert world.node.machine.numa_bits == recorded.node.machine.numa_bits
            assert world.node.machine.threads_per_core in possible_threads(recorded)
            mine = world.node.config.reserved_cpus or CpuSet()
            for bits in recorded.node.machine.numa_bits.values():
                assert len(mine & CpuSet(bits)) == len(reserved & CpuSet(bits))
            if case["published"]:
                assert (world.node.config, mine) == (recorded.node.config, reserved)
    assert found


@each_file("kubelet-churn")
def test_pods_are_refused_on_the_nodes_that_are_kept(file: Path) -> None:
    left = set(KEPT)
    for case in cases(file):
        recorded = Recorded(case)
        for name, index in [each for each in KEPT if each[0] == case["id"]]:
            question = recorded.events[index]
            assert question["kubelet_admits"]
            truth = World(recorded, recorded.node, recorded.ends)
            ((world, branch),) = kept(truth, Script(recorded.ends).before(index + 1), index)
            state = replayed(world, branch.script, index)
            assert state is not None
            assert not isinstance(admit(state, "question", recorded.requests[question["pod"]]), Admitted)
            assert Search(recorded, {index}).run().keys() == {index}
            left.remove((name, index))
    assert not left
