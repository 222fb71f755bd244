"""The demo: a simulated rack, filled through the real operator, then its placements and waiting pods."""

import asyncio
import signal
import tempfile
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from time import monotonic, time
from typing import Any, Final

from rich.console import Console
from rich.live import Live
from rich.text import Text

from koord_numa.cli.demo.pods import load_pods, load_referenced
from koord_numa.cli.demo.sandbox_cluster import (
    SandboxCluster,
    agents_publishing,
    operator,
    page_address,
    sandbox_cluster,
)
from koord_numa.cli.render.placements import PodView, find_cpus, machine_picture, numa_of, placements, waiting
from koord_numa.cli.render.tables import open_console
from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.request import Pod
from koord_numa.core.pod_resources import effective_requests
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.value_objects import ValueObject
from koord_numa.sandbox import DEMO_PODS, DEMO_RACK
from koord_numa.sandbox.devices import cpus_prepared, devices_prepared
from koord_numa.sandbox.machines import NodeDescription, SimulatedNode, Style, load_descriptions
from koord_numa.view.text import count
from koord_numa.wire import parse_pod

Json = dict[str, Any]

WAVE: Final = 8
"""Number of pods that are submitted at once, so that users can watch the rack fill up."""

PAUSE: Final = 0.4
"""Minimum seconds between two waves."""

TOPOLOGY_DELAY: Final = 0.3
"""
Seconds until the scheduler has received the reports of the nodes, so that decisions are the same in every run.

Longer at a slower pace.
"""

SETTLED_SECONDS: Final = 1.5
"""Seconds without a change after which the result is final."""

LONGEST_SECONDS: Final = 45.0
"""Seconds without a change after which the demo reports in any case."""

LATEST_IN_SECOND: Final = 0.5
"""
Latest part of a second for the start of a wave.

The API has creation times in whole seconds. The pods of a wave then have the same age, and decisions by age are the
same in every run.
"""

_POLL_SECONDS: Final = 0.1


class NodeLoad(ValueObject):
    """The pods of a node, their CPU requests, and its CPUs, in milli-CPU."""

    pods: int
    asked: int
    cpus: int


class Progress(ValueObject):
    """Progress of the demo."""

    submitted: int
    running: int
    waiting: int
    refused: int
    nodes: Mapping[str, NodeLoad]

    @property
    def decided(self) -> int:
        """Number of pods with a result."""
        return self.running + self.waiting + self.refused

    @property
    def settled(self) -> bool:
        """True if every submitted pod has a result."""
        return self.decided == self.submitted


class Pace(ValueObject):
    """Pace of the submission: ``wave`` pods at once, with ``pause`` seconds between waves."""

    wave: int = WAVE
    pause: float = PAUSE


class OperatorEnded(Exception):
    """The process of the operator ended before the demo was over."""


async def fill(
    cluster: SandboxCluster,
    pods: Sequence[Json],
    alive: Callable[[], bool],
    show: Callable[[Progress], None],
    pace: Pace,
) -> None:
    """
    Submit the pods in waves and wait until nothing changes. Raises ``OperatorEnded``.

    Nodes report only between waves.
    """
    begun = submitted = reported = monotonic()
    left, delay = list(pods), max(TOPOLOGY_DELAY, pace.pause)
    before, changed = -1, begun
    while monotonic() - changed < LONGEST_SECONDS:
        if not alive():
            raise OperatorEnded
        progress, now = look(cluster), monotonic()
        show(progress)
        if cluster.server.revision != before:
            before, changed = cluster.server.revision, now
        if progress.settled and await cluster.publish():
            reported = now
        elif left and progress.settled and now - submitted >= pace.pause and now - reported >= delay:
            if time() % 1 > LATEST_IN_SECOND:
                await asyncio.sleep(1 - time() % 1)
            wave = next_wave(left, pace.wave)
            # In the order of the scheduling queue for pods of equal age, so that the result does not depend on timing.
            for pod in sorted(wave, key=_name):
                cluster.server.store.create(pod)
            del left[: len(wave)]
            submitted = now
        elif not left and progress.settled and now - changed > SETTLED_SECONDS:
            return
        await asyncio.sleep(_POLL_SECONDS)


def next_wave(left: Sequence[Json], most: int) -> Sequence[Json]:
    """
    Return the pods that are submitted at once: the first pods, with at most one pod that has claims.

    A pod with claims is rejected until its claims are created, and retried after a back-off. The order of several such
    pods would depend on timing.
    """
    with_claims = [index for index, pod in enumerate(left[:most]) if pod["spec"].get("resourceClaims")]
    return left[: with_claims[1] if len(with_claims) > 1 else most]


def _name(pod: Json) -> str:
    return str(pod["metadata"]["name"])


def look(cluster: SandboxCluster) -> Progress:
    """Count the current pods."""
    running = waiting = refused = submitted = 0
    for obj in cluster.server.store.list("pods"):
        submitted += 1
        phase = obj["status"].get("phase")
        refused += phase == "Failed"
        running += phase == "Running"
        waiting += not obj["spec"].get("nodeName") and bool(_unschedulable(obj))
    nodes = {name: _load(node) for name, node in sorted(cluster.fleet.nodes.items())}
    return Progress(submitted, running, waiting, refused, nodes)


def seen(cluster: SandboxCluster) -> list[PodView]:
    """Return all pods as shown by the cluster and by their simulated machines."""
    holders = cluster.fleet.history.holders()
    found = []
    for obj in cluster.server.store.list("pods"):
        pod = parse_pod(obj)
        node = cluster.fleet.nodes.get(pod.node)
        prepared = cluster.devices.kubelets.prepared_for(pod.key.uid) if node else ()
        own = find_cpus(holders.get(pod.node, {}), pod) if node else EMPTY
        cpus = CpuSet.of(cpu for part in (own, *map(cpus_prepared, prepared)) for cpu in part)
        machine = node.description.hardware.machine if node else None
        devices = tuple(name for claim in prepared for name in devices_prepared(claim))
        found.append(PodView(pod, cpus, numa_of(pod, cpus, machine), _unschedulable(obj), devices))
    return found


def node_titles(cluster: SandboxCluster) -> dict[str, str]:
    """Return a description of each node."""
    return {name: _title(node.description) for name, node in cluster.fleet.nodes.items()}


def machine_to_show(cluster: SandboxCluster, pods: Sequence[PodView]) -> tuple[str, CpuTopology]:
    """Return the machine with most pods that hold CPUs, preferably with fewer than 128 CPUs."""
    counts = Counter(seen.pod.node for seen in pods if seen.cpus)
    machines = {name: node.description.hardware.machine for name, node in cluster.fleet.nodes.items()}
    name = max(sorted(machines), key=lambda name: (len(machines[name].cpus) < 128, counts[name]))
    return name, machines[name]


def shared_on(pods: Sequence[PodView], node: str) -> dict[int, str]:
    """Return the number of pods on shared CPUs, by NUMA node."""
    counts: Counter[int] = Counter()
    for one in pods:
        if one.pod.node == node and not one.cpus:
            counts.update(one.numa)
    return {numa: f"{count(number, 'pod')} on shared CPUs" for numa, number in counts.items()}


def pods_by_node(pods: Sequence[PodView], node: str) -> list[PodView]:
    """Return the pods of one node."""
    return [one for one in pods if one.pod.node == node]


def is_placed(pod: Pod) -> bool:
    """Return whether the pod has a node and has not finished."""
    return bool(pod.node) and not pod.finished


def _load(node: SimulatedNode) -> NodeLoad:
    asked = sum(effective_requests(pod.request).get(CPU, 0) for pod in node.pods.values())
    reserved = 0 if node.description.style is Style.KUBELET else MILLI * len(node.description.reserved)
    return NodeLoad(len(node.pods), asked, node.description.allocatable[CPU] - reserved)


def _title(node: NodeDescription) -> str:
    counts = node.hardware.machine.counts
    parts = [count(counts.sockets, "socket"), count(counts.numa, "NUMA node"), count(counts.cpus, "CPU")]
    parts += [f"{number} {name.rpartition('/')[2]}" for name, number in sorted(node.hardware.device_counts().items())]
    if node.hardware.claimed_devices:
        kinds = Counter(it.resource.rpartition("/")[2] for it in node.hardware.claimed_devices)
        parts += [f"{number} {kind}" for kind, number in sorted(kinds.items())]
        parts.append("devices and CPUs by claim")
        return ", ".join(parts)
    if node.style is Style.KUBELET:
        parts.append(f"CPUs chosen by its kubelet ({node.kubelet.topology_policy})")
    return ", ".join(parts)


def _unschedulable(obj: Json) -> str:
    for condition in obj["status"].get("conditions") or ():
        if condition["type"] == "PodScheduled" and condition["status"] == "False":
            return str(condition.get("message") or condition.get("reason") or "")
    return ""


_BAR = 30

LOOK_AROUND = (
    "kubectl get nodes,pods -o wide",
    "kubectl describe pod too-wide",
    "kubectl get noderesourcetopologies",
    "koord-numa nodes",
    "koord-numa node xeon-1",
    "koord-numa explain too-wide",
)
"""Suggested commands for a demo that is kept."""


def run_demo(*, keep: bool, seed: int | None, speed: float) -> int:
    """Run the demo and return the exit status."""
    console = open_console()
    with tempfile.TemporaryDirectory(prefix="koord-numa-demo-") as folder:
        try:
            return asyncio.run(_run(console, Path(folder), DemoOptions(keep, seed, Pace(pause=PAUSE / speed))))
        except (KeyboardInterrupt, asyncio.CancelledError):
            console.print("\nstopped; all files are removed")
            return 130


class DemoOptions(ValueObject):
    """Options of one demo."""

    keep: bool
    seed: int | None
    pace: Pace


async def _run(console: Console, folder: Path, plan: DemoOptions) -> int:
    # KeyboardInterrupt is not used, because SIGINT may be ignored, as in background jobs of a shell.
    if task := asyncio.current_task():
        # Cancellation ends the blocks and stops the operator. A plain SIGTERM would leave it running.
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, task.cancel)
    nodes = load_descriptions(DEMO_RACK)
    pods = load_pods(DEMO_PODS, plan.seed)
    kubeconfig, log = folder / "kubeconfig", folder / "operator.log"
    async with sandbox_cluster(nodes, kubeconfig) as cluster, operator(kubeconfig, log) as process:
        console.print(f"{len(nodes)} machines are ready, {len(pods)} pods to place.\n")
        for document in load_referenced(DEMO_PODS):
            cluster.server.store.create(document)
        begun = monotonic()
        try:
            with _display(console, len(pods)) as show:
                await fill(cluster, pods, lambda: process.returncode is None, show, plan.pace)
        except OperatorEnded:
            console.print(f"[red]The operator has ended.[/] Its log:\n{log.read_text(errors='replace')}")
            return 1
        seconds = monotonic() - begun
        # Outside the measured time: the demo measures placements.
        await cluster.agents.round()  # the last pods have also been pinned and compared
        code = _report(console, cluster, seconds)
        if plan.keep:
            async with agents_publishing(cluster):
                await _stay(console, kubeconfig, log)
        return code


class _display:  # noqa: N801  (used as a function)
    """Progress display: a changing line in a terminal, a line per step elsewhere."""

    def __init__(self, console: Console, total: int) -> None:
        self._console = console
        self._total = total
        self._live = Live(console=console, refresh_per_second=10, transient=True) if console.is_terminal else None
        self._last = ""
        self._begun = monotonic()

    def __enter__(self) -> Callable[[Progress], None]:
        if self._live is not None:
            self._live.start()
        return self._show

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            self._live.stop()

    def _show(self, progress: Progress) -> None:
        text = (
            f"{progress.submitted:3} of {self._total} submitted   {progress.running:3} running   "
            f"{progress.waiting:2} waiting   {progress.refused} rejected"
        )
        if not progress.decided:
            # In steps of 2 s: outside of a terminal every change is a line.
            text += f"   the operator starts, {int(monotonic() - self._begun) // 2 * 2} s"
        if self._live is not None:
            lines = [Text(text, "bold"), Text(), *(_bar(node, load) for node, load in progress.nodes.items())]
            self._live.update(Text("\n").join(lines))
        elif text != self._last:
            self._console.print(text)
        self._last = text


def _bar(node: str, load: NodeLoad) -> Text:
    filled = min(_BAR, round(_BAR * load.asked / load.cpus)) if load.cpus else 0
    line = Text(f"  {node:<16}")
    line.append("█" * filled, "cyan")
    line.append("░" * (_BAR - filled), "dim")
    line.append(f"  {load.asked // 1000:3} of {load.cpus // 1000} CPUs  {count(load.pods, 'pod')}")
    return line


def _report(console: Console, cluster: SandboxCluster, seconds: float) -> int:
    pods = seen(cluster)
    console.print()
    console.print(placements(pods, node_titles(cluster)))
    console.print("\n[bold]Waiting[/]\n")
    console.print(waiting(pods, console.width))
    name, machine = machine_to_show(cluster, pods)
    reserved = cluster.fleet.nodes[name].description.reserved
    console.print(f"\n[bold]{name}[/]\n")
    for line in machine_picture(machine, pods_by_node(pods, name), reserved, shared_on(pods, name), console.width):
        console.print(line)
    fleet = cluster.fleet
    refused = [*fleet.refusals, *cluster.devices.kubelets.refusals]
    wrong = [*fleet.violations, *refused, *fleet.double_holds(), *cluster.agents.differences()]
    placed = sum(is_placed(one.pod) for one in pods)
    waits = sum(not one.pod.node for one in pods)
    console.print()
    if cluster.agents.agents:
        console.print(str(cluster.agents))
    if prepared := len(cluster.devices.kubelets.prepared):
        console.print(
            f"DRA drivers prepared {count(prepared, 'claim')} and rejected {len(cluster.devices.kubelets.refusals)}."
        )
    console.print(
        f"{placed} of {len(pods)} pods placed in {seconds:.1f} s, {waits} {'waits' if waits == 1 else 'wait'} with a reason, "
        f"{len(refused)} rejected by a node, {len(fleet.double_holds())} CPUs held twice."
    )
    for complaint in wrong:
        console.print(f"[red]wrong:[/] {complaint}")
    return 1 if wrong else 0


async def _stay(console: Console, kubeconfig: Path, log: Path) -> None:
    console.print(
        f"\nThe cluster stays until Ctrl-C. Its page: {page_address(log)}/\n\nLook around:\n", highlight=False
    )
    console.print(f"  export KUBECONFIG={kubeconfig}")
    for line in LOOK_AROUND:
        console.print(f"  {line}", markup=False)
    await asyncio.Event().wait()
