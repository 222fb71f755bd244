"""``koord-numa explain POD``: why a pod waits and what would make it fit, or what it got."""

from collections.abc import Iterator, Mapping
from typing import Any

import click

from koord_numa.cli.cluster.access import Access, with_access, with_namespace
from koord_numa.cli.cluster.pod_names import pod_name
from koord_numa.cli.cluster.running import ask_scheduler, with_scheduler
from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.cluster.views import pod_view, remedies_for
from koord_numa.cli.render.console import open_console
from koord_numa.cli.render.decisions import largest_text, node_answers, placement_text
from koord_numa.cli.render.output import Output, with_output
from koord_numa.cli.render.placements import sentences
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.view.text import asked, numa_text, policies


@click.command(short_help="Say why a pod waits and what would help, or what it holds.")
@click.argument("pod")
@with_namespace
@with_output
@with_scheduler
@with_access
def command(pod: str, namespace: str | None, output: Output, scheduler: str, access: Access) -> None:
    """
    Say why a pod waits, with every node's answer and with changes that would make it fit, or what a bound pod holds.

    With --scheduler the running scheduler is asked for its own record; else the answer comes from the objects. Reads only.
    """
    where, name = pod_name(pod, namespace, access.namespace)
    if scheduler:
        _show_record(ask_scheduler(access, scheduler, f"/api/v1/pods/{where}/{name}"), output)
        return
    snapshot = access.snapshot()
    found = snapshot.find(where, name)
    if found is None:
        raise click.ClickException(f"there is no pod {where}/{name}")
    if not output.is_table:
        output.print_document(pod_view(snapshot, found), (f"pod/{name}",))
        return
    console = open_console()
    console.print(f"[bold]{found.key}[/]  {asked(found)}  {policies(found)}")
    for line in _bound(found, snapshot) if found.node else _waiting(found, snapshot, console.width):
        console.print(line, markup=False)


def _bound(pod: Pod, snapshot: Snapshot) -> Iterator[str]:
    yield f"  is bound to {pod.node}, phase {pod.phase}{': ' + pod.reason if pod.reason else ''}"
    given = pod.assignment
    if given is None:
        yield "  holds no CPUs or NUMA nodes that the scheduler chose"
        return
    info = snapshot.scheduler.cache.nodes.get(pod.node)
    seen = None if info is None else info.candidate()
    kubelets = seen is not None and isinstance(seen.offer, KubeletView)
    cpus = str(given.cpus) or ("chosen by the kubelet" if kubelets else "shared")
    yield f"  NUMA {numa_text(numa for numa, _ in given.numa)}, CPUs {cpus}"
    if info is not None and info.topology is not None and (difference := info.topology.differences.get(str(pod.key))):
        yield f"  {difference}"


def _waiting(pod: Pod, snapshot: Snapshot, width: int) -> Iterator[str]:
    verdict = snapshot.decide(pod)
    if isinstance(verdict, Placement):
        yield f"  would go to {placement_text(verdict)}"
    else:
        yield from sentences(verdict.why.splitlines()[0], width)
    answers = list(node_answers(snapshot, pod, width))
    if not answers:
        return
    yield ""
    yield from answers
    yield ""
    if not isinstance(verdict, Placement):
        remedies = remedies_for(snapshot, pod)
        if remedies:
            yield "  What would make it fit:"
        for remedy in remedies:
            yield from sentences(f"- {remedy.text}", width)
    yield f"  The largest request that one NUMA node could serve now: {largest_text(snapshot)}"


def _show_record(record: Mapping[str, Any], output: Output) -> None:
    """The running scheduler's own record of the pod."""
    if not output.is_table:
        output.print_document(dict(record), (f"pod/{str(record.get('pod', '')).rpartition('/')[2]}",))
        return
    console = open_console()
    console.print(f"[bold]{record['pod']}[/]  {record.get('state', '')}  {record.get('node', '')}".rstrip())
    for line in sentences(str(record.get("why", "")), console.width):
        console.print(line, markup=False)
    for remedy in (record.get("shape") or {}).get("wouldFit", ()):
        for line in sentences(f"- {remedy['text']}", console.width):
            console.print(line, markup=False)
