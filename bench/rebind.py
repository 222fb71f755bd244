"""How long the plan of one large fragmented node takes: 384 CPUs, about 60 pods."""

import time
from collections.abc import Iterator
from itertools import islice
from statistics import mean

from bench.figure import Figure
from koord_numa.core.rebind.board import Board
from koord_numa.core.rebind.plan import plan_rebind
from tests.core.rebind.nodes import fragmented

_NODES = 60  # enough to meet the hard ones, with little spare room and many crossing pods


def figures() -> Iterator[Figure]:
    """Worst and mean over sixty such nodes."""
    times = []
    for node in islice(_large(), _NODES):
        start = time.process_time()
        plan_rebind(node)
        times.append(time.process_time() - start)
    yield Figure(
        "rebind plan, 384 CPUs, worst", max(times), "s", 1.0, note=f"mean {mean(times):.2f} s of {_NODES} nodes"
    )


def _large() -> Iterator[Board]:
    seed = 0
    while True:
        node = fragmented(seed)
        if len(node.machine.cpus) == 384 and len(node.tenants) >= 40:
            yield node
        seed += 1
