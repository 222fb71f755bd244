"""Output of decisions and simulations as text and as versioned documents."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

from rich.console import Console

from koord_numa.cli.cluster.simulation import Simulated, SimulatedOutcome, totals_of
from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.render.output import now
from koord_numa.cli.render.placements import sentences
from koord_numa.cli.render.tables import Columns
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.explain import ELSEWHERE, describe
from koord_numa.core.kubelet import KubeletView, known_of
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MEMORY, PODS, ResourceList
from koord_numa.core.state.numa_free import aligned_shapes
from koord_numa.view import Document, document
from koord_numa.view.text import NONE, asked, count, device_texts, numa_text, policies, short_amounts

_SHOWN: Final = 6
"""Maximum number of node names per answer."""


def placement_text(placement: Placement) -> str:
    """
    Return a placement as ``xeon-0, NUMA 0, CPUs 1-4,49-52``.

    Where a kubelet chooses CPUs, its predicted choice is added.
    """
    parts = [placement.node]
    numa = [numa for numa, _ in placement.numa] or list(CpuSet(placement.mask or 0))
    if numa:
        parts.append(f"NUMA {numa_text(numa)}")
    if placement.cpus:
        parts.append(f"CPUs {placement.cpus}")
    parts.extend(device_texts(placement))
    if placement.note:
        parts.append(placement.note)
    return ", ".join(parts)


def node_answers(snapshot: Snapshot, pod: Pod, width: int) -> Iterator[str]:
    """Yield the answers of the nodes to the pod, a paragraph per distinct answer, in the order of the first node."""
    names: dict[str, list[str]] = {}
    for name, answer in snapshot.answers(pod).items():
        if isinstance(answer, Placement):
            text = f"yes: {placement_text(answer)}"
        else:
            text = f"no: {answer.message.removeprefix('node(s) ').removeprefix('whose ')}"
            if numbers := describe(answer):
                text += f": {numbers}"
            text += _what_is_known(snapshot, name)
        names.setdefault(text, []).append(name)
    yield from _paragraphs(names, width)


def _what_is_known(snapshot: Snapshot, node: str) -> str:
    """
    Return the number of possible kubelet states and the free amounts for a rejection by a node with an uncertain state.
    """
    info = snapshot.scheduler.cache.nodes.get(node)
    seen = None if info is None else info.candidate()
    if seen is None or not isinstance(seen.offer, KubeletView):
        return ""
    known = known_of(seen.offer)
    if known.is_certain:
        return ""
    return f" ({known.states} states are possible; free on {', on '.join(map(str, known.free[:_SHOWN]))})"


def record_lines(record: Mapping[str, Any], width: int) -> Iterator[str]:
    """
    Yield the lines for the record of a pod from a running scheduler: its node and CPUs, or the reason why it waits and
    remedies.
    """
    if record.get("state") == "bound" or record.get("node"):
        yield f"  is {record.get('state')} on {record.get('node')}"
        yield f"  NUMA {','.join(record.get('numa') or ()) or NONE}, CPUs {record.get('cpus') or 'shared, or by the kubelet'}"
        return
    yield from sentences(str(record.get("why") or "no decision yet"), width)
    if group := record.get("group"):
        yield ""
        yield from group_lines(group, width)
        yield ""
        yield _waited_line(record)
        return
    names: dict[str, list[str]] = {}
    for node, answer in (record.get("refusedBy") or {}).items():
        text = str(answer.get("message", "")).removeprefix("node(s) ").removeprefix("whose ")
        names.setdefault(f"no: {text}", []).append(node)
    if names:
        yield ""
        yield from _paragraphs(names, width)
    remedies = (record.get("shape") or {}).get("wouldFit") or ()
    if remedies:
        yield ""
        yield "  What would make it fit:"
    for remedy in remedies:
        yield from sentences(f"- {remedy['text']}", width)
    yield ""
    yield _waited_line(record)


def _waited_line(record: Mapping[str, Any]) -> str:
    return f"  Waited {record.get('waitedSeconds', 0):.0f} s, tried {count(int(record.get('attempts', 0)), 'time')}."


def group_lines(group: Mapping[str, Any], width: int) -> Iterator[str]:
    """Yield the lines about the group of a pod: its gangs, the member that blocks it, its topology domains and remedies."""
    for gang in group["gangs"]:
        least = "no minCount" if gang["minCount"] is None else f"minCount {gang['minCount']}"
        pods = f"{count(gang['pods'], 'pod')} exist{'s' if gang['pods'] == 1 else ''}"
        yield from sentences(
            f"gang {gang['name']} ({gang['api']}): {least}, {pods}, {gang['scheduled']} with a node", width
        )
    if group["state"] == "scheduled":
        return
    if group["state"] == "fits":
        there = f" in {group['domain']}" if group["domain"] else ""
        yield from sentences(f"{count(group['placed'], 'pod')} of it would be placed together{there}", width)
        return
    if group["blockedBy"]:
        yield from sentences(f"blocked by {group['blockedBy']}, beside {count(group['placed'], 'placed pod')}", width)
    for domain in group["domains"]:
        why = f"; {domain['why']}" if domain["why"] else ""
        yield from sentences(f"{domain['name']}: {domain['placed']} of {domain['members']} pods{why}", width)
    if group["wouldFit"]:
        yield ""
        yield "  What would make the group fit:"
    for remedy in group["wouldFit"]:
        yield from sentences(f"- {remedy['text']}", width)


def _paragraphs(names: Mapping[str, list[str]], width: int) -> Iterator[str]:
    for text, those in names.items():
        yield from sentences(f"{_listed(those)}: {text}", width)


def _listed(names: list[str]) -> str:
    """Return the first names as ``a, b, c``, and the number of further names."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def largest_text(snapshot: Snapshot, pod: Pod) -> str:
    """
    Return the largest request that one NUMA node could serve now, on the nodes that the pod may use, without its
    policies: that with the most of the scarcest resource that the pod requests.

    Empty if there is no such node.
    """
    answers = snapshot.answers(pod)
    usable = [
        seen for seen in snapshot.candidates() if seen.barred is None and not _is_elsewhere(answers.get(seen.node.name))
    ]
    wanted = {name: amount for name, amount in effective_requests(pod.request).items() if amount and name != PODS}
    shapes = [(shape, seen.node.name) for seen in usable for shape in aligned_shapes(seen)]
    best = max(shapes, key=lambda found: _covered(wanted, found[0]), default=None)
    if best is None:
        return "nothing: no node publishes NUMA nodes" if usable else ""
    amounts, node = best
    return f"{short_amounts(amounts)} on {node}"


def _covered(wanted: ResourceList, shape: ResourceList) -> tuple[float, int, int]:
    """Return a sort key: the share of the scarcest requested resource that the shape has, then its CPUs and memory."""
    shares = (min(1.0, shape.get(name, 0) / amount) for name, amount in wanted.items() if name in shape or "/" in name)
    return min(shares, default=1.0), shape.get(CPU, 0), shape.get(MEMORY, 0)


def _is_elsewhere(answer: Placement | Rejection | None) -> bool:
    return isinstance(answer, Rejection) and answer.reason in ELSEWHERE


MANY: Final = 100
"""Number of pods above which only waiting pods, or pods that differ between two configurations, are listed."""

SHOWN: Final = 10
"""Maximum number of listed pods if there are more than ``MANY``."""


def print_results(console: Console, results: Sequence[Simulated], passed: Mapping[str, int]) -> None:
    """
    Print a paragraph per pod, or for many pods the reasons of waiting pods, then the sums.

    ``passed`` is the number of ignored objects by kind.
    """
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
    """Yield the reasons of waiting pods, most frequent first, each with its first pod."""
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
    """Return ``on 120 nodes, 98.2% of those that can be aligned on as few NUMA nodes as they need``."""
    totals = totals_of(results)
    text = f"on {count(totals.nodes, 'node')}"
    if totals.tried:
        text += (
            f"; {totals.aligned / totals.tried:.1%} of those that ask for alignment on as few NUMA nodes as they need"
        )
    return text


def print_comparison(console: Console, names: Sequence[str], sides: Sequence[Sequence[Simulated]]) -> None:
    """Print a line per pod, or for many pods a line per differing pod, then the sums."""
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
    """Return the ``SimulationList``: an entry per pod, and the sums."""
    return document(
        "SimulationList", generatedAt=now(), summary=_summary(results), items=[_entry(one) for one in results]
    )


def comparison_document(names: Sequence[str], sides: Sequence[Sequence[Simulated]]) -> Document:
    """
    Return the ``SimulationComparison``: the content of a ``SimulationList`` for each configuration, in the given order.
    """
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
        return {**entry, **found, "devices": list(device_texts(placement))}
    return {**entry, "why": one.verdict.why}


def everything_placed(results: Sequence[Simulated]) -> bool:
    """Return whether all pods were placed."""
    return all(one.outcome is SimulatedOutcome.PLACED for one in results)
