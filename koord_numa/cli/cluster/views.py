"""Documents of the JSON API, built from a snapshot instead of a running scheduler."""

from collections.abc import Iterator
from datetime import UTC, datetime

from koord_numa.cli.cluster.access import Selects
from koord_numa.cli.cluster.snapshot import Snapshot, WouldWait, run_inline
from koord_numa.cli.render.output import now
from koord_numa.core.objects.gangs import GangKey
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection
from koord_numa.engine.device_moves import MAX_MOVES, find_moves
from koord_numa.engine.queue import RequestClass
from koord_numa.view import Document, document
from koord_numa.view.advice import Remedy, advise
from koord_numa.view.documents import cluster_document, node_document, node_entry, wanted_claims
from koord_numa.view.text import asked, policies
from koord_numa.view.waiting import WaitingGroup, WaitingShape, advise_group, group_entry, shape_entry, waiting_document


def node_entries(snapshot: Snapshot, selects: Selects = lambda _: True) -> list[Document]:
    """Return an entry for each node with selected labels, sorted by name."""
    infos = sorted(snapshot.scheduler.cache.nodes.items())
    found = [entry for _, info in infos if (entry := node_entry(info)) is not None]
    return [entry for entry in found if selects(entry["labels"])]


def cluster_view(snapshot: Snapshot, selects: Selects = lambda _: True) -> Document:
    """Return ``/api/v1/cluster`` for the nodes with selected labels."""
    nodes = node_entries(snapshot, selects)
    selected = {entry["name"] for entry in nodes}
    moves = [move for move in find_moves(snapshot.scheduler) if move is not None and move.node in selected]
    return cluster_document(nodes, len(pending_pods(snapshot)), now(), moves[:MAX_MOVES])


def node_view(snapshot: Snapshot, name: str) -> Document | None:
    """Return ``/api/v1/nodes/NAME``, or None for an unknown node."""
    info = snapshot.scheduler.cache.nodes.get(name)
    return None if info is None else node_document(info, snapshot.scheduler.claims, now())


def waiting_view(snapshot: Snapshot) -> Document:
    """Return ``/api/v1/waiting``: pods without a node that would wait now, by shape, with advice."""
    shapes = [shape for pods in _by_class(snapshot) if (shape := _shape(snapshot, pods)) is not None]
    first = {keys: pod for pod in reversed(pending_pods(snapshot)) if (keys := snapshot.group_of(pod))}
    views = (group_view(snapshot, pod) for _, pod in sorted(first.items(), key=lambda entry: str(entry[0][0])))
    return waiting_document(shapes, now(), [view for view in views if view is not None and view["state"] != "fits"])


def pod_view(snapshot: Snapshot, pod: Pod) -> Document:
    """
    Return the document of ``explain -o json``.

    It has the pod's node, the node it would get, or the reason why it would wait with the answers of all nodes.
    """
    common = {
        "source": "objects", "pod": str(pod.key), "uid": pod.key.uid, "labels": dict(pod.labels), "phase": pod.phase, "node": pod.node,
        "asks": asked(pod), "policies": policies(pod),
    }  # fmt: skip
    if pod.node:
        held = pod.assignment
        numa = [] if held is None else [numa for numa, _ in held.numa]
        return document(
            "PodView",
            generatedAt=now(),
            **common,
            state="bound",
            cpus="" if held is None else str(held.cpus),
            numa=numa,
        )
    verdict = snapshot.decide(pod)
    if isinstance(verdict, Placement):
        chosen = {
            "node": verdict.node,
            "numa": [numa for numa, _ in verdict.numa],
            "cpus": str(verdict.cpus),
            "note": verdict.note,
        }
        fits = {"state": "fits", "wouldGoTo": chosen, "shape": None, "group": group_view(snapshot, pod)}
        return document("PodView", generatedAt=now(), **common, **fits)
    shape = _shape(snapshot, [pod])
    waits = {
        "state": "waiting",
        "why": verdict.why,
        "shape": None if shape is None else shape_entry(shape),
        "group": group_view(snapshot, pod),
    }
    return document("PodView", generatedAt=now(), **common, **waits)


def group_view(snapshot: Snapshot, pod: Pod) -> Document | None:
    """Return the entry of the group of a pod with advice; ``None`` for a pod without a group."""
    keys = snapshot.group_of(pod)
    return _group_view(snapshot, keys) if keys else None


def named_group_view(snapshot: Snapshot, namespace: str, name: str) -> Document | None:
    """Return the document of ``explain podgroup/NAME -o json``; ``None`` for an unknown group."""
    groups = snapshot.scheduler.handle.pod_groups
    if (key := groups.named(namespace, name)) is None:
        return None
    entry = _group_view(snapshot, groups.group(key)[0])
    return document("GroupView", generatedAt=now(), source="objects", **entry)


def _group_view(snapshot: Snapshot, keys: tuple[GangKey, ...]) -> Document:
    if keys not in snapshot.group_views:
        report = snapshot.report_on(keys)
        remedies = run_inline(advise_group(snapshot.scheduler, report))
        waited = max((_waited(member) for member in report.members), default=0.0)
        group = WaitingGroup(keys, report.members, report.why, waited, report, remedies)
        snapshot.group_views[keys] = group_entry(snapshot.scheduler, group)
    return dict(snapshot.group_views[keys])


def remedies_for(snapshot: Snapshot, pod: Pod) -> list[Remedy]:
    """Return the changes that would make a waiting pod fit."""
    rejections = rejections_of(snapshot, pod)
    return [*run_inline(advise(snapshot.scheduler, pod, rejections))] if rejections else []


def rejections_of(snapshot: Snapshot, pod: Pod) -> dict[str, Rejection]:
    """Return the rejections of all nodes. Empty if any node accepts the pod or if the pod is not tried."""
    answers = snapshot.answers(pod)
    refused = {name: answer for name, answer in answers.items() if isinstance(answer, Rejection)}
    return refused if len(refused) == len(answers) else {}


def pending_pods(snapshot: Snapshot) -> list[Pod]:
    """Return the pods with our scheduler names and without a node, sorted by age."""
    ours = snapshot.scheduler.settings.scheduler_names
    found = [pod for pod in snapshot.pods if not pod.node and not pod.finished and pod.scheduler in ours]
    return sorted(found, key=lambda pod: (pod.created, str(pod.key)))


def _by_class(snapshot: Snapshot) -> Iterator[list[Pod]]:
    groups: dict[tuple[RequestClass, tuple[GangKey, ...]], list[Pod]] = {}
    for pod in pending_pods(snapshot):
        request_class = snapshot.scheduler.classes.of(pod)
        if request_class is not None:
            groups.setdefault((request_class, snapshot.group_of(pod)), []).append(pod)
    yield from groups.values()


def _shape(snapshot: Snapshot, pods: list[Pod]) -> WaitingShape | None:
    verdict = snapshot.decide(pods[0])
    if not isinstance(verdict, WouldWait):
        return None
    claims = wanted_claims(snapshot.scheduler.claims, pods[0])
    if (report := snapshot.group_report(pods[0])) is not None:
        # Advice about a member alone would not help its group.
        verdict_of_group = None if report.rejection is None else report.rejection.verdict
        refused = {} if verdict_of_group is None else verdict_of_group.rejections
        return WaitingShape(pods, verdict.why, refused, _waited(pods[0]), claims=claims)
    return WaitingShape(
        pods, verdict.why, rejections_of(snapshot, pods[0]), _waited(pods[0]), remedies_for(snapshot, pods[0]), claims
    )


def _waited(pod: Pod) -> float:
    return max(0.0, datetime.now(UTC).timestamp() - pod.created) if pod.created else 0.0
