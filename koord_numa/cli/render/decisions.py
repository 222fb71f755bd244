"""A decision in words: where a pod goes and what it gets there, or what every node answers."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.render.placements import sentences
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.explain import ELSEWHERE, describe
from koord_numa.core.kubelet.knowledge import known_of
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.core.state.numa_free import largest_aligned
from koord_numa.view.text import NONE, claimed_devices, count, numa_text, short_amounts

_SHOWN: Final = 6
"""So many nodes of one answer are named."""


def placement_text(placement: Placement) -> str:
    """``xeon-0, NUMA 0, CPUs 1-4,49-52``; where a kubelet chooses, what it is foreseen to do."""
    parts = [placement.node]
    numa = [numa for numa, _ in placement.numa] or list(CpuSet(placement.mask or 0))
    if numa:
        parts.append(f"NUMA {numa_text(numa)}")
    if placement.cpus:
        parts.append(f"CPUs {placement.cpus}")
    parts.extend(claimed_devices(placement))
    if placement.note:
        parts.append(placement.note)
    return ", ".join(parts)


def node_answers(snapshot: Snapshot, pod: Pod, width: int) -> Iterator[str]:
    """What the nodes answer to the pod, a paragraph for those that say the same, by the name of the first."""
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
    """For a refusal on a kubelet-owned node whose state is not certain: how many states are possible, and what is free in them."""
    info = snapshot.scheduler.cache.nodes.get(node)
    seen = None if info is None else info.candidate()
    if seen is None or not isinstance(seen.offer, KubeletView):
        return ""
    known = known_of(seen.offer)
    if known.is_certain:
        return ""
    return f" ({known.states} states are possible; free on {', on '.join(map(str, known.free[:_SHOWN]))})"


def record_lines(record: Mapping[str, Any], width: int) -> Iterator[str]:
    """What a running scheduler's record of a pod says: where the pod is and with what, or why it waits and what would help."""
    if record.get("state") == "bound" or record.get("node"):
        yield f"  is {record.get('state')} on {record.get('node')}"
        yield f"  NUMA {','.join(record.get('numa') or ()) or NONE}, CPUs {record.get('cpus') or 'shared, or by the kubelet'}"
        return
    yield from sentences(str(record.get("why") or "no decision yet"), width)
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
    yield f"  Waited {record.get('waitedSeconds', 0):.0f} s, tried {count(int(record.get('attempts', 0)), 'time')}."


def _paragraphs(names: Mapping[str, list[str]], width: int) -> Iterator[str]:
    for text, those in names.items():
        yield from sentences(f"{_listed(those)}: {text}", width)


def _listed(names: list[str]) -> str:
    """``a, b, c``, and how many more."""
    shown = ", ".join(names[:_SHOWN])
    return shown if len(names) <= _SHOWN else f"{shown} and {len(names) - _SHOWN} more"


def largest_text(snapshot: Snapshot, pod: Pod) -> str:
    """
    The largest request that one NUMA node could serve now, independent of the pod's policies, on the nodes that the pod may use.

    Empty where it may use none.
    """
    answers = snapshot.answers(pod)
    usable = [
        seen for seen in snapshot.candidates() if seen.barred is None and not _is_elsewhere(answers.get(seen.node.name))
    ]
    best = max(
        ((largest_aligned(seen), seen.node.name) for seen in usable),
        key=lambda found: (found[0].get("cpu", 0), found[0].get("memory", 0)),
        default=None,
    )
    if best is None:
        return ""
    amounts, node = best
    return f"{short_amounts(amounts)} on {node}" if amounts else "nothing: no node publishes NUMA nodes"


def _is_elsewhere(answer: Placement | Rejection | None) -> bool:
    return isinstance(answer, Rejection) and answer.reason in ELSEWHERE
