"""Time to plan the rebind of a large fragmented node, and distance of plans from the fewest possible NUMA crossings."""

import time
from collections.abc import Iterator
from statistics import mean

from bench.figure import Figure
from koord_numa.core.rebind.plan import plan_rebind
from tests.core.rebind.nodes import fragmented
from tests.core.rebind.sorted_order import crossings, in_sorted_order, least_crossings

_NODES = 500  # those of the planner's own test; among them are all that were ever found hard
_LARGE = 384  # CPUs


def figures() -> Iterator[Figure]:
    """Time over the large nodes, crossings over all of them."""
    times = []
    today = left = least = reached = 0
    for seed in range(_NODES):
        node = fragmented(seed)
        start = time.process_time()
        plan = plan_rebind(node)
        # Small nodes are planned in no time and would hide the large ones in a mean.
        if len(node.machine.cpus) == _LARGE:
            times.append(time.process_time() - start)
        today += plan.before.crossings
        left += plan.after.crossings
        least += least_crossings(node)
        # A node whose pods cannot be sorted stays as it is.
        reached += sum(crossings(node, in_sorted_order(node) or node.now))
    note = f"mean {mean(times):.2f} s of {len(times)} nodes, 1 to 60 pods"
    yield Figure("rebind plan, 384 CPUs, worst", max(times), "s", 1.0, note=note)
    note = f"of {today} today {left} are left; sorted order {reached}, for which pods become worse"
    yield Figure("rebind crossings above the least", 100 * (left - least) / least, "%", 3.0, note=note)
