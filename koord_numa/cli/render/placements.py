"""Results of the demo for users: a table of placements, waiting pods with their reasons, and a map of one machine."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from textwrap import wrap

from rich.console import Group, RenderableType
from rich.text import Text

from koord_numa.cli.render import cpu_map
from koord_numa.cli.render.tables import Columns
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.request import Pod, PodKey
from koord_numa.core.value_objects import ValueObject
from koord_numa.view.drawing import CpuHolder, Drawing
from koord_numa.view.text import NONE, asked, count, numa_text, policies

_MANY = 3
"""Number of equivalent pods on shared CPUs from which they are shown as one line."""


class PodView(ValueObject):
    """
    A pod as shown by the cluster.

    ``cpus`` are the CPUs on which it runs. ``waits_for`` is the message of the scheduler. ``devices`` are the devices
    that drivers prepared for its claims.
    """

    pod: Pod
    cpus: CpuSet = EMPTY
    numa: tuple[int, ...] = ()
    waits_for: str = ""
    devices: tuple[str, ...] = ()


def placements(pods: Sequence[PodView], node_titles: Mapping[str, str]) -> RenderableType:
    """Return a table with a line per pod that has a node, below a line for its node with its title."""
    rows: list[Sequence[str | Text]] = []
    running = sorted((seen for seen in pods if seen.pod.node), key=lambda seen: (seen.pod.node, *_order(seen)))
    for node, group in groupby(running, key=lambda seen: seen.pod.node):
        title = Text(node, "bold")
        title.append(f"  {node_titles.get(node, '')}", "not bold dim")
        rows.append([title])
        for (_, *cells), alike in groupby(group, key=_cells):
            rows.extend(_name_and_cells([seen.pod.key.name for seen in alike], cells))
    return Group(*Columns(("POD", "QOS", "REQUESTS", "POLICY", "NUMA", "CPUS"), rows).lines(indent=2))


def waiting(pods: Sequence[PodView], width: int) -> RenderableType:
    """Return all waiting pods with the message of the scheduler."""
    lines: list[Text] = []
    for seen in sorted(pods, key=lambda seen: seen.pod.key.name):
        if not seen.pod.node:
            head = Text(seen.pod.key.name, "bold yellow")
            head.append(f"  {asked(seen.pod)}  {policies(seen.pod)}", "not bold dim")
            lines.append(head)
            lines.extend(Text(line) for line in sentences(seen.waits_for or "no decision yet", width))
    return Group(*lines)


def sentences(text: str, width: int) -> Iterator[str]:
    """Yield the lines of a text, indented and wrapped to the width. Continuation lines are indented further."""
    for line in text.splitlines():
        yield from wrap(line, width, initial_indent="  ", subsequent_indent="    ", break_on_hyphens=False)


def machine_picture(
    machine: CpuTopology, pods: Iterable[PodView], reserved: CpuSet, shared: Mapping[int, str], width: int
) -> Iterator[Text]:
    """Yield a map of the CPUs of one machine and the pods that hold them."""
    owners = [
        CpuHolder(seen.pod.key.name, seen.cpus, policies(seen.pod)) for seen in sorted(pods, key=_order) if seen.cpus
    ]
    return cpu_map.lines(Drawing(machine, owners, reserved, shared), width)


def numa_of(pod: Pod, cpus: CpuSet, machine: CpuTopology | None) -> tuple[int, ...]:
    """Return the known NUMA nodes on which the pod holds CPUs or amounts."""
    if pod.assignment is not None and pod.assignment.numa:
        return tuple(numa for numa, _ in pod.assignment.numa)
    if machine is None or not cpus:
        return ()
    return tuple(CpuSet(machine.numa_of(cpus)))


def find_cpus(held: Mapping[PodKey, CpuSet], pod: Pod) -> CpuSet:
    """Return the CPUs that ``held`` has for the uid of the pod."""
    return next((cpus for key, cpus in held.items() if key.uid == pod.key.uid), EMPTY)


def _order(seen: PodView) -> tuple[int, str, str, str]:
    """Return the sort key: by CPUs. Pods on shared CPUs come last, with equivalent pods together."""
    return (next(iter(seen.cpus), 1 << 20), asked(seen.pod), numa_text(seen.numa), seen.pod.key.name)


def _cells(seen: PodView) -> tuple[str, ...]:
    """Return the cells of a pod, after a grouping key: its exclusive CPUs and devices."""
    pod = seen.pod
    cpus = " ".join((str(seen.cpus) if seen.cpus else "shared", *seen.devices))
    return (cpus, str(pod.request.qos) or NONE, asked(pod), policies(pod), numa_text(seen.numa), cpus)


def _name_and_cells(names: Sequence[str], cells: Sequence[str]) -> Iterator[Sequence[str | Text]]:
    *middle, cpus = cells
    style = "dim" if cpus == "shared" else "cyan"
    shown = list(names) if len(names) < _MANY else [f"{names[0]} … ({count(len(names), 'pod')})"]
    for name in shown:
        yield [name, *middle, Text(cpus, style)]
