"""The demo: a simulated rack, filled through the real operator, then its placements and waiting pods."""

import asyncio
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path
from time import monotonic

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
from koord_numa.cli.demo.scenario import (
    PAUSE,
    NodeLoad,
    OperatorEnded,
    Pace,
    Progress,
    fill,
    is_placed,
    machine_to_show,
    node_titles,
    pods_by_node,
    seen,
    shared_on,
)
from koord_numa.cli.render.placements import machine_picture, placements, waiting
from koord_numa.cli.render.tables import open_console
from koord_numa.core.value_objects import ValueObject
from koord_numa.sandbox import DEMO_PODS, DEMO_RACK
from koord_numa.sandbox.machines import load_descriptions
from koord_numa.view.text import count

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
            f"{progress.waiting:2} waiting   {progress.refused} refused"
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
            f"Drivers prepared {count(prepared, 'claim')}, and refused {len(cluster.devices.kubelets.refusals)}."
        )
    console.print(
        f"{placed} of {len(pods)} pods placed in {seconds:.1f} s, {waits} {'waits' if waits == 1 else 'wait'} with a reason, "
        f"{len(refused)} refused by a node, {len(fleet.double_holds())} CPUs held twice."
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
