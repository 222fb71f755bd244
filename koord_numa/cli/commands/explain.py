"""
``koord-numa explain POD``: why a pod waits and what would make it fit, or what it holds. Without POD: all waiting pods.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Final

import click

from koord_numa.cli.cluster.access import (
    Access,
    Selects,
    complete_names,
    pod_name,
    with_access,
    with_namespace,
    with_scheduler,
    with_selector,
    with_watch,
)
from koord_numa.cli.parameters import Documented
from koord_numa.cli.render.output import (
    Lines,
    Output,
    check_watch,
    labels_text,
    no_resources,
    now,
    print_changes,
    width,
    with_output,
    with_sorting,
)
from koord_numa.core.value_objects import ValueObject
from koord_numa.view import Document, document

if TYPE_CHECKING:
    from koord_numa.cli.cluster.snapshot import Snapshot
    from koord_numa.core.objects.request import Pod


class Question(ValueObject):
    """
    The queried pods: one pod or group, or without ``name`` all selected waiting pods of a namespace (None for all namespaces).
    """

    namespace: str | None
    name: str
    selects: Selects
    scheduler: str
    access: Access
    is_group: bool = False

    @property
    def title(self) -> str:
        """Kind and name, as in kubectl."""
        return f"{'podgroup' if self.is_group else 'pod'}/{self.name}"


GROUPS: Final = ("podgroup/", "podgroups/", "pg/")
"""Prefixes of names of groups."""


def _question(text: str, namespace: str | None, selects: Selects, scheduler: str, access: Access) -> Question:
    prefix = next((prefix for prefix in GROUPS if text.startswith(prefix)), "")
    where, name = pod_name(text.removeprefix(prefix), namespace, access.namespace)
    return Question(where, name, selects, scheduler, access, is_group=bool(prefix))


@click.command(
    cls=Documented,
    short_help="Show why pods wait and what would make them fit, or what a pod holds.",
    examples=(
        ("Why a pod waits, or what it holds", "explain web-1"),
        ("Why a group of pods waits", "explain podgroup/train"),
        ("Two pods", "explain web-1 web-2 -n team"),
        ("All waiting pods", "explain -A"),
        ("Proposals, for a script", "explain web-1 -o jsonpath='{.shape.wouldFit[*].text}'"),
        ("From a snapshot", "explain web-1 --from cluster.yaml"),
    ),
)
@click.argument("pods", nargs=-1, metavar="[POD]...", shell_complete=complete_names("pods"))
@click.option("-A", "--all-namespaces", is_flag=True, help="Without POD: all namespaces.")
@with_selector
@with_watch
@with_namespace
@with_sorting
@with_output
@with_scheduler
@with_access
def command(
    pods: tuple[str, ...],
    all_namespaces: bool,
    selects: Selects,
    watch: bool,
    namespace: str | None,
    output: Output,
    scheduler: str,
    access: Access,
) -> None:
    """
    Show why PODs wait and what would make them fit, or what bound pods hold.

    podgroup/NAME explains a group. Without POD, all waiting pods are listed. The last line shows the source of the answer (--scheduler).
    """
    check_watch(watch, access, output)
    if not pods:
        where = None if all_namespaces else namespace or access.namespace
        _list(Question(where, "", selects, scheduler, access), output, watch=watch)
        return
    if all_namespaces:
        raise click.UsageError("-A cannot be combined with POD")
    questions = [_question(pod, namespace, selects, scheduler, access) for pod in pods]
    if output.is_table:
        print_changes(lambda: [*_all_lines(questions)], watch=watch)
        return
    found = [_document(question) for question in questions]
    if len(found) > 1:
        whole = document("PodViewList", generatedAt=now(), items=output.ordered(found))
    else:
        whole = found[0]
    output.print_document(whole, (question.title for question in questions))


def _all_lines(questions: list[Question]) -> Iterator[str]:
    for number, question in enumerate(questions):
        if number:
            yield ""
        yield from _lines(question, width())


def _path(question: Question) -> str:
    return f"/api/v1/{'groups' if question.is_group else 'pods'}/{question.namespace}/{question.name}"


def _document(question: Question) -> Document:
    from koord_numa.cli.cluster.running import ask
    from koord_numa.cli.cluster.views import named_group_view, pod_view

    # The running scheduler has priority: a snapshot lacks its back-off and its assumed pods.
    answered = ask(question.access, question.scheduler, _path(question))
    if answered is not None:
        # The answer includes the replica that answered.
        return {**answered.document, "source": f"scheduler {answered.by}"}
    snapshot = question.access.snapshot()
    if question.is_group:
        if (found := named_group_view(snapshot, question.namespace or "", question.name)) is None:
            raise click.ClickException(f"there is no group {question.namespace}/{question.name}")
        return found
    return pod_view(snapshot, _found(snapshot, question))


def _group_lines(question: Question, width: int) -> Iterator[str]:
    from koord_numa.cli.render.decisions import group_lines
    from koord_numa.cli.render.placements import sentences

    found = _document(question)
    yield f"{question.namespace}/{question.name}  {'; '.join(found['asks'])}".rstrip()
    yield from sentences(str(found["why"]).partition("\n")[0], width)
    yield from group_lines(found, width)
    by = "API objects" if found["source"] == "objects" else f"record of the running {found['source']}"
    yield f"  By the {by}."


def _lines(question: Question, width: int) -> Iterator[str]:
    if question.is_group:
        yield from _group_lines(question, width)
        return
    from koord_numa.cli.cluster.running import ask
    from koord_numa.cli.render.decisions import record_lines
    from koord_numa.view.text import asked, policies

    answered = ask(question.access, question.scheduler, _path(question))
    if answered is not None:
        record = answered.document
        yield f"{record['pod']}  {record.get('asks', '')}  {record.get('policies', '')}"
        yield from record_lines(record, width)
        yield f"  From the running scheduler, {answered.by}."
        return
    snapshot = question.access.snapshot()
    found = _found(snapshot, question)
    yield f"{found.key}  {asked(found)}  {policies(found)}"
    yield from _bound(found, snapshot) if found.node else _waiting(found, snapshot, width)
    yield "  From the API objects, not from a running scheduler."


def _found(snapshot: "Snapshot", question: Question) -> "Pod":
    found = snapshot.find(question.namespace or "", question.name)
    if found is None:
        raise click.ClickException(f"there is no pod {question.namespace}/{question.name}")
    return found


def _bound(pod: "Pod", snapshot: "Snapshot") -> Iterator[str]:
    from koord_numa.cli.render.nodes import claim_rows
    from koord_numa.core.kubelet import KubeletView
    from koord_numa.view.documents import node_claims
    from koord_numa.view.text import NONE, numa_text

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


def _waiting(pod: "Pod", snapshot: "Snapshot", width: int) -> Iterator[str]:
    from koord_numa.cli.cluster.views import group_view, remedies_for
    from koord_numa.cli.render.decisions import group_lines, largest_text, node_answers, placement_text
    from koord_numa.cli.render.placements import sentences
    from koord_numa.core.objects.verdicts import Placement

    verdict = snapshot.decide(pod)
    if isinstance(verdict, Placement):
        yield f"  would go to {placement_text(verdict)}"
    else:
        yield from sentences(verdict.why.splitlines()[0], width)
    if (group := group_view(snapshot, pod)) is not None:
        yield ""
        yield from group_lines(group, width)
        return
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
        views = _views(question, output)
        listed = document("PodViewList", generatedAt=now(), items=views)
        output.print_document(listed, (f"pod/{str(view['pod']).rpartition('/')[2]}" for view in views))
        return

    def read() -> Lines:
        rows = [_row(view, output) for view in _views(question, output)]
        if not rows and not watch:
            no_resources(question.namespace)
            return ()
        labels = ("LABELS",) if output.show_labels else ()
        return output.table_lines(("POD", "REQUESTS", "POLICY", "STATE", "ADVICE", "REASON", *labels), rows)

    print_changes(read, watch=watch)


def _views(question: Question, output: Output) -> list[Document]:
    from koord_numa.cli.cluster.views import pending_pods, pod_view

    snapshot = question.access.snapshot()
    return output.ordered(
        pod_view(snapshot, pod)
        for pod in pending_pods(snapshot)
        if question.namespace in (None, pod.key.namespace) and question.selects(dict(pod.labels))
    )


def _row(view: Document, output: Output) -> list[str]:
    shape, chosen = view.get("shape") or {}, view.get("wouldGoTo") or {}
    remedies = (view.get("group") or shape).get("wouldFit") or ()
    fit = next((remedy["text"] for remedy in remedies), "") or chosen.get("node", "")
    why = shape.get("why") or str(view.get("why", "")).partition("\n")[0]
    row = [str(view["pod"]), str(view["asks"]), str(view["policies"]), str(view["state"]), fit or "-", why]
    return [*row, *([labels_text(view["labels"])] if output.show_labels else [])]
