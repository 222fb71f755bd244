"""
Metrics of rebinds: how many ended and how, the pods they moved, and NUMA crossings before and after.

A crossing is a NUMA node beyond the first that a pod's CPUs lie on, summed over the pods of the node.
"""

from collections import Counter
from collections.abc import Iterable, Iterator

from prometheus_client import Metric
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily
from prometheus_client.registry import Collector

from koord_numa.core.objects.rebind_request import RebindPhase
from koord_numa.engine.metrics import RebindMetrics
from koord_numa.engine.rebind.controller import RebindController
from koord_numa.settings import RebindMode

_WAITING = "Waiting"
"""The label of a RebindResource whose status is still empty."""


class RebindCollector(Collector):
    """Reads the counters of the leader, and the RebindResources that this replica sees."""

    def __init__(self, counted: RebindMetrics, controller: RebindController) -> None:
        self._counted = counted
        self._controller = controller

    def collect(self) -> Iterable[Metric]:
        """Every family, in a fixed order; series exist before their first count, so that a rate sees it."""
        yield self._resources()
        yield from self._ended()
        yield from self._moves()
        yield self._automatic()

    def _resources(self) -> Metric:
        found = Counter(rebind.phase for rebind in self._controller.known())
        family = GaugeMetricFamily("koord_numa_rebind_resources", "RebindResources that exist.", labels=("phase",))
        for phase in RebindPhase:
            # The phase of a new object is empty, and a label must not be.
            family.add_metric((phase.value or _WAITING,), found[phase])
        return family

    def _ended(self) -> Iterator[Metric]:
        ended = CounterMetricFamily("koord_numa_rebinds", "Rebinds that ended, by phase.", labels=("phase", "dry_run"))
        for phase in (RebindPhase.SUCCEED, RebindPhase.FAILED):
            for dry_run in (False, True):
                ended.add_metric((phase.value, str(dry_run).lower()), self._counted.ended[phase.value, dry_run])
        yield ended

    def _moves(self) -> Iterator[Metric]:
        moves = CounterMetricFamily("koord_numa_rebind_moves", "Changes of a pod's CPUs that rebinds have made.")
        moves.add_metric((), self._counted.moves)
        yield moves
        crossings = CounterMetricFamily(
            "koord_numa_rebind_crossings",
            "NUMA crossings on nodes before and after rebinds that were no dry runs, summed over these.",
            labels=("when",),
        )
        crossings.add_metric(("before",), self._counted.crossings_before)
        crossings.add_metric(("after",), self._counted.crossings_after)
        yield crossings

    def _automatic(self) -> Metric:
        family = CounterMetricFamily(
            "koord_numa_automatic_rebinds", "RebindResources that rebindPolicy created.", labels=("mode",)
        )
        for mode in (RebindMode.PROPOSE, RebindMode.CREATE):
            family.add_metric((mode.value,), self._counted.automatic[mode.value])
        return family
