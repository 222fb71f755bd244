"""Rows keep their numbers whatever room is made, and the first line that has too little tells how many NUMA nodes are needed."""

import numpy as np

from koord_numa.engine.ranking.node_numbers import FREE, SPARES, UNLIMITED, NodeNumbers


def test_numbers_stay_when_lines_move() -> None:
    numbers = NodeNumbers(2)
    numbers.make_room({"cpu": [0, 0, 0]})
    assert numbers.counts == 3
    numbers.whole.write(1, [-25, 100, 200, 300])
    numbers.reach[0, 1] = [4000, 7000, 7500]
    version = numbers.version
    numbers.add_resource("example.com/gpu")
    numbers.make_room({"hugepages-2Mi": [0] * 4})
    numbers.grow(5)
    assert numbers.version == version + 2
    assert numbers.rows[1, SPARES : numbers.first_reach].tolist() == [-25, 100, 200, 300, 0]
    # A wider row repeats the last sum, and what it does not list is unlimited.
    assert numbers.reach[:, 1].tolist() == [[4000, 7000, 7500, 7500], [UNLIMITED] * 4, [UNLIMITED] * 4]
    assert numbers.rows[1, numbers.first_reach :: len(numbers.places)].tolist() == [7500, 7500, 7000, 4000]
    assert (numbers.rows[2:, numbers.first_reach :] == UNLIMITED).all()
    assert not numbers.rows[2:, FREE : numbers.first_reach].any()


def test_lines_of_numa_nodes_do_not_rise() -> None:
    numbers = NodeNumbers(1)
    numbers.make_room({"cpu": [0, 0, 0]})
    numbers.reach[:, 0] = [[4000, 7000, 7500], [3, 6, 9]]
    lacking = numbers.rows[0, numbers.first_reach :] < np.tile([6000, 0], 3)
    assert lacking.argmax() == 2 * len(numbers.places)  # all but the emptiest one would do: two are needed
