"""``koord-numa explain POD``: why a pod waits, or what it got, node by node."""

from collections.abc import Iterator
from pathlib import Path

import click

from koord_numa.cli.cluster.snapshot import CONFIG, FILES, KUBECONFIG, Access, Snapshot
from koord_numa.cli.render.console import open_console
from koord_numa.cli.render.decisions import largest_text, node_answers, placement_text
from koord_numa.cli.render.placements import sentences
from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Placement
from koord_numa.view.text import asked, numa_text, policies


@click.command(short_help="Say why a pod waits, or what it holds.")
@click.argument("pod")
@click.option("-n", "--namespace", default="default", show_default=True)
@FILES
@KUBECONFIG
@CONFIG
def command(pod: str, namespace: str, files: tuple[Path, ...], kubeconfig: Path | None, config: Path | None) -> None:
    """Say why a pod waits, with every node's answer, or what a bound pod holds. Reads only."""
    console = open_console()
    snapshot = Access(kubeconfig, config, files).snapshot()
    found = snapshot.find(namespace, pod)
    if found is None:
        raise click.ClickException(f"there is no pod {namespace}/{pod}")
    console.print(f"[bold]{found.key}[/]  {asked(found)}  {policies(found)}")
    for line in _bound(found) if found.node else _waiting(found, snapshot, console.width):
        console.print(line, markup=False)


def _bound(pod: Pod) -> Iterator[str]:
    yield f"  is bound to {pod.node}, phase {pod.phase}{': ' + pod.reason if pod.reason else ''}"
    given = pod.assignment
    if given is None:
        yield "  holds no CPUs or NUMA nodes that the scheduler chose"
        return
    yield f"  NUMA {numa_text(numa for numa, _ in given.numa)}, CPUs {given.cpus or 'shared'}"


def _waiting(pod: Pod, snapshot: Snapshot, width: int) -> Iterator[str]:
    verdict = snapshot.decide(pod)
    if isinstance(verdict, Placement):
        yield f"  would go to {placement_text(verdict)}"
    else:
        yield from sentences(verdict.why.splitlines()[0], width)
    answers = list(node_answers(snapshot, pod, width))
    if answers:
        yield ""
        yield from answers
        yield ""
        yield f"  The largest request that one NUMA node could serve now: {largest_text(snapshot)}"
