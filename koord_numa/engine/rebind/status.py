"""How one rebind goes, in the words of its status. It asks no pod and decides nothing."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime

from koord_numa.core.objects.rebind_request import RebindAnswer, RebindMove, RebindPhase
from koord_numa.core.objects.request import PodKey
from koord_numa.core.rebind.plan import Move, NodeFigures, RebindPlan
from koord_numa.engine.rebind.context import RebindContext
from koord_numa.wire.metadata import rfc3339


@dataclass(slots=True)
class RebindStatusReport:
    """
    What was planned, what was done, and the node's figures as far as they are known.

    ``numa_bound`` counts pods that hold memory or devices which keep them on their NUMA nodes, ``kept_by_claims`` those that stay as
    they are because devices of their resource claims do.
    """

    context: RebindContext
    plan: RebindPlan | None = None
    done: list[Move] = field(default_factory=list)
    after: NodeFigures | None = None
    numa_bound: int = 0
    kept_by_claims: int = 0

    def answer(self, phase: RebindPhase, reason: str) -> RebindAnswer:
        """The status at this moment."""
        context, plan = self.context, self.plan
        return RebindAnswer(
            phase=phase,
            reason=reason,
            time=time_of_day(context.ports.wall()),
            generation=context.request.generation,
            plan=net_moves(plan.moves) if plan else (),
            result=net_moves(self.done),
            steps=len(plan.moves) if plan else 0,
            stuck=() if plan is None else tuple(map(str, plan.dropped)),
            before=None if plan is None else plan.before,
            after=self.after,
            started=time_of_day(context.started) if context.started else "",
        )

    def outcome(self, before: NodeFigures, after: NodeFigures) -> str:
        """``2 pods moved in 3 steps: NUMA-crossing pods 2 → 0, …``; in a dry run what would be."""
        dry = self.context.request.dry_run
        moves = self.plan.moves if dry and self.plan is not None else self.done
        pods = _counted(len(net_moves(moves)), "pod")
        verb = "would move" if dry else "moved"
        text = (
            f"{pods} {verb} in {_counted(len(moves), 'step')}{': ' if before != after else ''}{compared(before, after)}"
        )
        if self.plan is not None and self.plan.dropped:
            text += f"; no spare CPUs to move {_counted(len(self.plan.dropped), 'more pod')}"
        return text + self._kept()

    def nothing_to_move(self, plan: RebindPlan) -> str:
        """Why no pod is moved."""
        if not plan.dropped:
            return f"nothing to improve{self._kept()}"
        return f"nothing can be improved without spare CPUs to move {_counted(len(plan.dropped), 'pod')}{self._kept()}"

    def _kept(self) -> str:
        text = ""
        if self.numa_bound:
            text = f"; {_counted(self.numa_bound, 'pod')} kept on the NUMA nodes of memory or devices (spec.moveMemory)"
        if self.kept_by_claims:
            text += (
                f"; {_counted(self.kept_by_claims, 'pod')} left alone for resource claims, whose devices cannot move"
            )
        return text

    def stopped(self, why: str) -> str:
        """How far it came, and why no further."""
        if self.plan is None or not self.plan.moves:
            return why
        return f"stopped after {len(self.done)} of {_counted(len(self.plan.moves), 'step')}: {why}"


def net_moves(moves: Iterable[Move]) -> tuple[RebindMove, ...]:
    """Pod by pod where it was first and where it is last, in the order in which pods first moved."""
    first: dict[PodKey, Move] = {}
    last: dict[PodKey, Move] = {}
    for move in moves:
        first.setdefault(move.pod, move)
        last[move.pod] = move
    return tuple(
        RebindMove(pod.namespace, pod.name, str(first[pod].before), str(last[pod].after))
        for pod in first
        if first[pod].before != last[pod].after
    )


def compared(before: NodeFigures, after: NodeFigures) -> str:
    """The figures that differ."""
    rows = (
        ("NUMA-crossing pods", before.crossing_pods, after.crossing_pods),
        ("NUMA crossings", before.crossings, after.crossings),
        ("split cores", before.split_cores, after.split_cores),
        ("exclusivity conflicts", before.conflicts, after.conflicts),
        ("largest free block", _largest(before), _largest(after)),
    )
    return ", ".join(f"{what} {old} → {new}" for what, old, new in rows if old != new)


def time_of_day(seconds: float) -> str:
    """RFC 3339, whole seconds, as Kubernetes writes times."""
    return rfc3339(datetime.fromtimestamp(seconds, UTC))


def _largest(figures: NodeFigures) -> int:
    return max(figures.largest_block.values(), default=0)


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}{'' if number == 1 else 's'}"
