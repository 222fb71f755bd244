"""What a simulation found, as text for people and as versioned documents."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from rich.console import Console

from koord_numa.cli.cluster.simulation import Outcome, Simulated, totals_of
from koord_numa.cli.cluster.views import now
from koord_numa.cli.render.columns import Columns
from koord_numa.cli.render.decisions import placement_text
from koord_numa.cli.render.placements import sentences
from koord_numa.core.objects.verdicts import Placement
from koord_numa.view.documents import Document, document
from koord_numa.view.text import asked, claimed_devices, count, policies

MANY: Final = 100
"""With more pods, only those that wait, or that differ between two configurations, are shown one by one."""

SHOWN: Final = 10
"""So many of them."""


def print_results(console: Console, results: Sequence[Simulated], passed: Mapping[str, int]) -> None:
    """A paragraph a pod, or, of many pods, the reasons for which pods wait; then the sums. ``passed`` are objects passed over, by kind."""
    if len(results) <= MANY:
        for one in results:
            console.print(f"[bold]{one.pod.key}[/]  {asked(one.pod)}  {policies(one.pod)}")
            for line in _verdict(one, console.width):
                console.print(line, markup=False)
    else:
        for line in _waiting(results, console.width):
            console.print(line, markup=False)
    totals = totals_of(results)
    console.print(f"\n{totals.placed} of {totals.pods} pods would be placed.")
    if totals.after_evictions:
        console.print(f"For {totals.after_evictions} more, room would be made by evictions.")
    if len(results) > MANY:
        console.print(f"They would be {_spread(results)}.")
    for kind, number in sorted(passed.items()):
        console.print(f"Passed over: {count(number, kind)}.")


def _verdict(one: Simulated, width: int) -> Iterator[str]:
    if isinstance(one.verdict, Placement):
        yield f"  {placement_text(one.verdict)}"
    else:
        yield from sentences(one.verdict.why, width)


def _waiting(results: Sequence[Simulated], width: int) -> Iterator[str]:
    """The reasons for which pods wait, the most frequent first, each with the first pod that has it."""
    first: dict[str, Simulated] = {}
    counted: Counter[str] = Counter()
    for one in results:
        if not isinstance(one.verdict, Placement):
            why = one.verdict.why.partition("\n")[0]
            counted[why] += 1
            first.setdefault(why, one)
    for why, number in counted.most_common(SHOWN):
        yield from sentences(
            f"{count(number, 'pod')}, the first {first[why].pod.key} ({asked(first[why].pod)}): {why}", width
        )
    if len(counted) > SHOWN:
        yield f"  … {len(counted) - SHOWN} more reasons; -o json has every pod"


def _spread(results: Sequence[Simulated]) -> str:
    """``on 120 nodes, 98.2% of those that can be aligned on as few NUMA nodes as they need``."""
    totals = totals_of(results)
    text = f"on {count(totals.nodes, 'node')}"
    if totals.tried:
        text += (
            f"; {totals.aligned / totals.tried:.1%} of those that ask for alignment on as few NUMA nodes as they need"
        )
    return text


def print_comparison(console: Console, names: Sequence[str], sides: Sequence[Sequence[Simulated]]) -> None:
    """A line for each pod, or, of many, for those that differ; and the sums."""
    pairs = [(one, other) for one, other in zip(*sides, strict=True)]
    shown = pairs if len(pairs) <= MANY else [(one, other) for one, other in pairs if _short(one) != _short(other)]
    rows = [
        [str(one.pod.key), _short(one), _short(other)]
        for one, other in shown[: max(SHOWN, MANY if shown is pairs else 0)]
    ]
    for line in Columns(("POD", *names), rows).lines():
        console.print(line)
    if len(shown) > len(rows):
        console.print(f"… {len(shown) - len(rows)} more of {len(pairs)} pods differ")
    console.print()
    for name, side in zip(names, sides, strict=True):
        totals = totals_of(side)
        console.print(f"{name}: {totals.placed} of {totals.pods} placed {_spread(side)}")


def results_document(results: Sequence[Simulated]) -> Document:
    """``SimulationList``: an entry a pod, and the sums."""
    return document(
        "SimulationList", generatedAt=now(), summary=_summary(results), items=[_entry(one) for one in results]
    )


def comparison_document(names: Sequence[str], sides: Sequence[Sequence[Simulated]]) -> Document:
    """``SimulationComparison``: a ``SimulationList``'s content for each configuration, in the order given."""
    parts = [
        {"configuration": name, "summary": _summary(side), "items": [_entry(one) for one in side]}
        for name, side in zip(names, sides, strict=True)
    ]
    return document("SimulationComparison", generatedAt=now(), configurations=parts)


def _short(one: Simulated) -> str:
    return placement_text(one.verdict) if isinstance(one.verdict, Placement) else one.outcome.value


def _summary(results: Sequence[Simulated]) -> Document:
    totals = totals_of(results)
    return {
        "pods": totals.pods,
        "placed": totals.placed,
        "afterEvictions": totals.after_evictions,
        "nodes": totals.nodes,
        "aligned": totals.aligned,
        "alignmentAsked": totals.tried,
    }


def _entry(one: Simulated) -> Document:
    entry = {
        "pod": str(one.pod.key),
        "asks": asked(one.pod),
        "policies": policies(one.pod),
        "outcome": one.outcome.name,
    }
    if isinstance(one.verdict, Placement):
        placement = one.verdict
        numa = [numa for numa, _ in placement.numa]
        found = {"node": placement.node, "numa": numa, "cpus": str(placement.cpus), "note": placement.note}
        return {**entry, **found, "devices": list(claimed_devices(placement))}
    return {**entry, "why": one.verdict.why}


def everything_placed(results: Sequence[Simulated]) -> bool:
    """Would no pod wait?"""
    return all(one.outcome is Outcome.PLACED for one in results)
