"""What became of pods and machines, for people: a table of placements, why pods wait, and a picture of one machine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text

from koord_numa.cli._picture import Owner, Picture
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.effective import effective_requests
from koord_numa.core.explain import amounts_text
from koord_numa.core.machine import Machine
from koord_numa.core.request import Pod, PodKey
from koord_numa.core.vocabulary import CpuBindPolicy, NumaPolicy


@dataclass(frozen=True, slots=True)
class Seen:
    """One pod as the cluster shows it. ``cpus`` are those it really runs on; ``waits_for`` is the scheduler's own sentence."""

    pod: Pod
    cpus: CpuSet = EMPTY
    kubelet_chose: bool = False
    numa: tuple[int, ...] = ()
    waits_for: str = ""


def placements(pods: Sequence[Seen]) -> Table:
    """A row for every pod that runs somewhere, by node."""
    table = Table(box=None, pad_edge=False, header_style="bold", show_edge=False)
    for heading in ("NODE", "POD", "QOS", "ASKS FOR", "POLICY", "NUMA", "CPUS"):
        table.add_column(heading, no_wrap=heading != "CPUS", overflow="fold")
    for seen in sorted(pods, key=lambda seen: (seen.pod.node, _first(seen), seen.pod.key.name)):
        if seen.pod.node:
            table.add_row(
                seen.pod.node,
                seen.pod.key.name,
                str(seen.pod.request.qos) or "-",
                _asked(seen.pod),
                _policy(seen.pod),
                ",".join(map(str, seen.numa)) or "-",
                _cpus(seen),
            )
    return table


def waiting(pods: Sequence[Seen]) -> RenderableType:
    """Every pod that waits, and why, in the scheduler's words."""
    lines: list[Text] = []
    for seen in sorted(pods, key=lambda seen: seen.pod.key.name):
        if not seen.pod.node:
            head = Text(seen.pod.key.name, style="bold yellow")
            head.append(f"  {_asked(seen.pod)}  {_policy(seen.pod)}", style="dim")
            lines.append(head)
            lines.extend(Text(f"  {line}") for line in (seen.waits_for or "no decision yet").splitlines())
    return Group(*lines)


def machine_picture(
    machine: Machine, pods: Iterable[Seen], reserved: CpuSet, shared: Mapping[int, str], width: int
) -> Iterator[Text]:
    """The CPUs of one machine and the pods that hold them."""
    owners = [
        Owner(str(seen.pod.key.name), seen.cpus, _policy(seen.pod))
        for seen in sorted(pods, key=lambda seen: (_first(seen), seen.pod.key.name))
        if seen.cpus
    ]
    return Picture(machine, owners, reserved, shared).lines(width)


def numa_of(pod: Pod, cpus: CpuSet, machine: Machine | None) -> tuple[int, ...]:
    """The NUMA nodes on which the pod holds something, as far as anyone knows."""
    if pod.assignment is not None and pod.assignment.numa:
        return tuple(numa for numa, _ in pod.assignment.numa)
    if machine is None or not cpus:
        return ()
    return tuple(CpuSet(machine.numa_of(cpus)))


def find_cpus(held: Mapping[PodKey, CpuSet], pod: Pod) -> CpuSet:
    """The CPUs of this very pod."""
    return next((cpus for key, cpus in held.items() if key.uid == pod.key.uid), EMPTY)


def _first(seen: Seen) -> int:
    return next(iter(seen.cpus), 1 << 20)


def _asked(pod: Pod) -> str:
    return amounts_text(effective_requests(pod.request)) or "nothing"


def _policy(pod: Pod) -> str:
    bind = pod.request.bind
    parts = [str(bind.required if bind.required is not CpuBindPolicy.NONE else bind.preferred)]
    if pod.request.numa.policy is not NumaPolicy.NONE:
        parts.append(str(pod.request.numa.policy))
    return " ".join(part for part in parts if part) or "-"


def _cpus(seen: Seen) -> str:
    if not seen.cpus:
        return "shared"
    return f"{seen.cpus} (by the kubelet)" if seen.kubelet_chose else str(seen.cpus)
