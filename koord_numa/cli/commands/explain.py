"""
``koord-numa explain POD``: why a pod waits and what would make it fit, or what it holds. Without POD: all waiting pods.
"""

from collections.abc import Iterator
from dataclasses import dataclass

import click
from rich.text import Text

from koord_numa.cli.cluster.access import (
    Access,
    Selects,
    pod_name,
    with_access,
    with_namespace,
    with_selector,
    with_watch,
)
from koord_numa.cli.cluster.running import ask, with_scheduler
from koord_numa.cli.cluster.snapshot import Snapshot
from koord_numa.cli.cluster.views import now, pending_pods, pod_view, remedies_for
from koord_numa.cli.render.decisions import largest_text, node_answers, placement_text, record_lines
from koord_numa.cli.render.nodes import claim_rows
from koord_numa.cli.render.output import Lines, Output, check_watch, open_console, print_changes, with_output
from koord_numa.cli.render.placements import sentences
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.view.documents import Document, document
from koord_numa.view.documents.claims import node_claims
from koord_numa.view.text import NONE, asked, numa_text, policies


@dataclass(frozen=True, slots=True)
class Question:
    """
    The queried pods: one pod, or without ``name`` all selected waiting pods of a namespace (None for all namespaces).
    """

    namespace: str | None
    name: str
    selects: Selects
    scheduler: str
    access: Access


@click.command(short_help="Say why pods wait and what would help, or what a pod holds.")
@click.argument("pod", required=False)
@click.option("-A", "--all-namespaces", is_flag=True, help="Without POD: pods that wait in every namespace.")
@with_selector
@with_watch
@with_namespace
@with_output
@with_scheduler
@with_access
def command(
    pod: str | None,
    all_namespaces: bool,
    selects: Selects,
    watch: bool,
    namespace: str | None,
    output: Output,
    scheduler: str,
    access: Access,
) -> None:
    """
    Say why POD waits, with every node's answer and with changes that would make it fit, or what a bound pod holds.

    The running scheduler is asked for its own record of POD when it can be reached; else the answer comes from the objects, and the
    last line says which. Without POD, every pod that waits is listed, by the objects. Reads only.
    """
    check_watch(watch, access, output)
    if pod is None:
        where = None if all_namespaces else namespace or access.namespace
        question = Question(where, "", selects, scheduler, access)
        _list(question, output, watch=watch)
        return
    if all_namespaces:
        raise click.UsageError("-A goes without POD")
    where, name = pod_name(pod, namespace, access.namespace)
    question = Question(where, name, selects, scheduler, access)
    if output.is_table:
        console = open_console()
        print_changes(console, lambda: [*_lines(question, console.width)], watch=watch)
    else:
        output.print_document(_document(question), (f"pod/{name}",))


def _path(question: Question) -> str:
    return f"/api/v1/pods/{question.namespace}/{question.name}"


def _document(question: Question) -> Document:
    # The running scheduler has priority: a snapshot lacks its back-off and its assumed pods.
    answered = ask(question.access, question.scheduler, _path(question))
    if answered is not None:
        # The answer includes the replica that answered.
        return {**answered.document, "source": f"scheduler {answered.by}"}
    snapshot = question.access.snapshot()
    return pod_view(snapshot, _found(snapshot, question))


def _title(pod: str, rest: str) -> Text:
    return Text.assemble((pod, "bold"), f"  {rest}")


def _lines(question: Question, width: int) -> Iterator[str | Text]:
    answered = ask(question.access, question.scheduler, _path(question))
    if answered is not None:
        record = answered.document
        yield _title(record["pod"], f"{record.get('asks', '')}  {record.get('policies', '')}")
        yield from record_lines(record, width)
        yield f"  By the record of the running scheduler, {answered.by}."
        return
    snapshot = question.access.snapshot()
    found = _found(snapshot, question)
    yield _title(str(found.key), f"{asked(found)}  {policies(found)}")
    yield from _bound(found, snapshot) if found.node else _waiting(found, snapshot, width)
    yield "  By the API objects, not by the record of a running scheduler."


def _found(snapshot: Snapshot, question: Question) -> Pod:
    found = snapshot.find(question.namespace or "", question.name)
    if found is None:
        raise click.ClickException(f"there is no pod {question.namespace}/{question.name}")
    return found


def _bound(pod: Pod, snapshot: Snapshot) -> Iterator[str]:
    yield f"  is bound to {pod.node}, phase {pod.phase}{': ' + pod.reason if pod.reason else ''}"
    given = pod.assignment
    info = snapshot.scheduler.cache.nodes.get(pod.node)
    seen = None if info is None else info.candidate()
    claims = [] if info is None else [it for it in node_claims(snapshot.scheduler.claims, info) if pod in it.pods]
    if seen is not None:
        for claim, _, numa, held in claim_rows(seen, snapshot, claims):
            yield f"  claim {claim} holds {held}" + (f" on NUMA {numa}" if numa != NONE else "")
    if given is None:
        yield f"  holds no {'other ' if claims else ''}CPUs or NUMA nodes that the scheduler chose"
        return
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
    if largest := largest_text(snapshot, pod):
        yield f"  The largest request that one NUMA node could serve now: {largest}"


def _list(question: Question, output: Output, *, watch: bool) -> None:
    if not output.is_table:
        views = _views(question)
        listed = document("PodViewList", generatedAt=now(), items=views)
        output.print_document(listed, (f"pod/{str(view['pod']).rpartition('/')[2]}" for view in views))
        return

    def read() -> Lines:
        rows = [_row(view) for view in _views(question)]
        if not rows and not watch:
            click.echo("No pods wait.", err=True)
            return ()
        return output.table_lines(("POD", "ASKS FOR", "POLICY", "STATE", "WOULD FIT", "WHY"), rows)

    print_changes(open_console(), read, watch=watch)


def _views(question: Question) -> list[Document]:
    snapshot = question.access.snapshot()
    return [
        pod_view(snapshot, pod)
        for pod in pending_pods(snapshot)
        if question.namespace in (None, pod.key.namespace) and question.selects(dict(pod.labels))
    ]


def _row(view: Document) -> list[str]:
    shape, chosen = view.get("shape") or {}, view.get("wouldGoTo") or {}
    fit = next((remedy["text"] for remedy in shape.get("wouldFit") or ()), "") or chosen.get("node", "")
    why = shape.get("why") or str(view.get("why", "")).partition("\n")[0]
    return [str(view["pod"]), str(view["asks"]), str(view["policies"]), str(view["state"]), fit or "-", why]
