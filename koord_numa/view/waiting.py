"""Documents of ``/api/v1`` about waiting pods and groups: the reason with figures, and remedies."""

import asyncio
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from itertools import groupby
from typing import Final

from cachetools import TTLCache

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.explain import amounts_text, bare_amount, closest_nodes, cpus_text, describe, needs_text
from koord_numa.core.objects.gangs import Dialect, GangKey
from koord_numa.core.objects.request import Pod, PodRequest
from koord_numa.core.objects.verdicts import NumaNumbers, Rejection
from koord_numa.core.objects.vocabulary import CpuOwner
from koord_numa.core.resources import CPU, MILLI
from koord_numa.core.scheduling.gangs import Placed
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.gangs.group_report import Change, GroupReport, dry_run_group, placed_beside
from koord_numa.engine.metrics import LoggedDecision, RunnerUp
from koord_numa.engine.scheduler import Scheduler
from koord_numa.view import Document, document
from koord_numa.view.advice import (
    CLOSEST,
    Probe,
    Remedy,
    bind_policies,
    departures,
    kubelet_settings,
    largest_container,
    node_policies,
    numa_policies,
    situations,
    tainted_nodes,
    with_amount,
)
from koord_numa.view.text import asked, count, device_texts, policies


def decisions_document(decisions: Iterable[LoggedDecision], now: str, nodes: Mapping[str, NodeInfo]) -> Document:
    """Return the decisions, newest first. ``decisions`` are oldest first."""
    entries = [_entry(one, nodes.get(one.placement.node)) for one in reversed([*decisions])]
    return document("DecisionsView", generatedAt=now, decisions=entries)


def _entry(one: LoggedDecision, node: NodeInfo | None) -> Document:
    placement = one.placement
    kubelet_chooses = node is not None and node.topology is not None and node.topology.owner is CpuOwner.KUBELET
    return {
        "time": datetime.fromtimestamp(one.seconds, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z"),
        "pod": str(one.pod),
        "uid": one.pod.uid,
        "node": placement.node,
        "numa": [numa for numa, _ in placement.numa] or list(CpuSet(placement.mask or 0)),
        "cpus": str(placement.cpus) or ("by the kubelet" if kubelet_chooses else "shared"),
        "devices": list(device_texts(placement)),
        "alignment": placement.alignment.value,
        "score": "" if one.score is None else str(one.score),
        "runnersUp": [_runner_up(other, one.score or 0) for other in one.runners_up],
    }


def _runner_up(other: RunnerUp, best: int) -> Document:
    """Return the entry of a runner-up. ``why`` lists the scorers that made the difference, the largest first."""
    ranked = sorted(other.differences.items(), key=lambda entry: (-abs(entry[1]), entry[0]))
    parts = ", ".join(f"{name} {points:+d}" for name, points in ranked)
    why = f"score {other.score}: {parts}" if other.score != best else f"the same score {other.score}; names decide"
    return {"node": other.node, "score": other.score, "why": why}


SHAPES: Final = 200
"""Maximum number of listed shapes. Shapes with most pods come first."""

PODS: Final = 50
"""Maximum number of listed pods per shape."""

CLOSEST_TO_SHAPE: Final = 5
"""Maximum number of described nodes per shape."""


class WaitingShape(ValueObject):
    """
    Pods that all nodes treat alike, oldest first.

    ``seconds`` is the waiting time of the oldest pod. ``claims`` are its resource claims.
    """

    pods: Sequence[Pod]
    why: str
    rejections: Mapping[str, Rejection]
    seconds: float = 0.0
    remedies: Sequence[Remedy] = ()
    claims: Sequence[Document] = ()


def waiting_document(shapes: Iterable[WaitingShape], now: str, groups: Iterable[Document] = ()) -> Document:
    """
    Return all shapes, those with most pods first, and the entries of waiting groups.

    ``more`` is the number of shapes that are not listed.
    """
    ranked = sorted(shapes, key=lambda shape: (-len(shape.pods), str(shape.pods[0].key)))
    return document(
        "WaitingView",
        generatedAt=now,
        groups=[*groups],
        classes=[shape_entry(shape) for shape in ranked[:SHAPES]],
        more=max(0, len(ranked) - SHAPES),
    )


def shape_entry(shape: WaitingShape) -> Document:
    """Return the entry of one shape."""
    pod = shape.pods[0]
    return {
        "pods": [str(each.key) for each in shape.pods[:PODS]],
        "count": len(shape.pods),
        "group": "" if pod.request.gang is None else str(pod.request.gang.key),
        "priority": pod.request.priority,
        "asks": asked(pod),
        "policies": policies(pod),
        "qos": str(pod.request.qos),
        "waitedSeconds": round(shape.seconds, 3),
        # Only the sentence. The lines about single nodes are in ``closest``, as data.
        "why": shape.why.partition("\n")[0],
        "reasons": reasons(shape.rejections),
        "closest": [
            node_rejection(name, shape.rejections[name]) for name in closest_nodes(shape.rejections, CLOSEST_TO_SHAPE)
        ],
        "claims": [*shape.claims],
        "wouldFit": [remedy_entry(remedy) for remedy in shape.remedies],
    }


def remedy_entry(remedy: Remedy) -> Document:
    """Return the entry of one remedy."""
    return {"kind": remedy.kind, "node": remedy.node, "text": remedy.text}


def reasons(rejections: Mapping[str, Rejection]) -> list[Document]:
    """Return the reasons with their numbers of nodes, the most frequent first."""
    texts = sorted((rejection.reason.value, rejection.message) for rejection in rejections.values())
    counted = [(len(list(group)), reason, message) for (reason, message), group in groupby(texts)]
    ranked = sorted(counted, key=lambda entry: (-entry[0], entry[1:]))
    return [{"reason": reason, "message": message, "nodes": nodes} for nodes, reason, message in ranked]


def node_rejection(name: str, rejection: Rejection) -> Document:
    """Return the entry of a node that rejects a pod."""
    return {
        "node": name,
        "reason": rejection.reason.value,
        "message": rejection.message,
        "detail": rejection.detail if rejection.numbers else describe(rejection),
        "largest": amounts_text(rejection.largest) if rejection.largest else "",
        "numa": [_numbers(one) for one in rejection.numbers],
    }


def _numbers(one: NumaNumbers) -> Document:
    """Return amounts in internal units (milli-CPU, bytes, counts) and as text."""
    free, total = (amounts_text({one.resource: amount}) for amount in (one.free, one.total))
    return {
        "numa": one.numa,
        "resource": one.resource,
        "free": one.free,
        "total": one.total,
        "needed": one.needed,
        "freeText": free.partition(" ")[0] if one.resource != CPU else f"{free} {one.shape}".rstrip(),
        "totalText": total.partition(" ")[0] if one.resource != CPU else total,
        "neededText": needs_text({one.resource: one.needed}),
    }


MOST_MEMBERS: Final = 256
"""Maximum members of a group with advice. On 200 nodes a dry run of such a group takes 0.14 s, and its advice 0.7 s, in turns of 0.2 s."""

SHOWN_NODES: Final = 4
"""Maximum nodes that are named in a proposal."""

SHOWN_REMEDIES: Final = 6
"""Maximum proposals for a group."""

CLOSEST_TO_MEMBER: Final = 3
"""Maximum nodes that are described for the member that blocks a group."""

COUNT_NAMES: Final = {
    Dialect.KUBERNETES: "minCount",
    Dialect.KOORDINATOR: "a minimal count of",
    Dialect.SCHEDULER_PLUGINS: "minMember",
}
"""Name of the minimal count by dialect."""

_ON_ONE_NODE: Final = (node_policies, kubelet_settings, tainted_nodes, departures, situations)
"""Proposals for the only missing member, beside the other members."""


class WaitingGroup(ValueObject):
    """
    Waiting group with its advice.

    ``seconds`` is the waiting time of its oldest member, and ``why`` the reason in the words of the scheduler.
    """

    keys: Sequence[GangKey]
    pods: Sequence[Pod]
    why: str
    seconds: float = 0.0
    report: GroupReport | None = None
    remedies: Sequence[Remedy] = ()


def group_entry(scheduler: Scheduler, group: WaitingGroup) -> Document:
    """Return the entry of a group."""
    report = group.report
    rejection = None if report is None else report.rejection
    placed = None if report is None else report.placed
    verdict = None if rejection is None else rejection.verdict
    rejections = {} if verdict is None else verdict.rejections
    blocked = None if rejection is None else rejection.blocked
    first = group.pods[0] if group.pods else None
    return {
        "gangs": [_gang_entry(scheduler, key) for key in group.keys],
        "pods": [str(pod.key) for pod in group.pods[:PODS]],
        "count": len(group.pods),
        "priority": 0 if first is None else first.request.priority,
        "asks": sorted({asked(pod) for pod in group.pods}),
        "waitedSeconds": round(group.seconds, 3),
        "state": "fits" if placed else "waiting" if group.why or group.pods else "scheduled",
        "why": group.why,
        "placed": len(placed.placements) if placed else 0 if rejection is None else len(rejection.beside),
        "domain": placed.domain if placed else "",
        "blockedBy": "" if blocked is None else str(blocked.key),
        "domains": [
            {
                "name": it.name,
                "placed": it.placed,
                "members": it.members,
                "blockedBy": "" if it.blocked is None else str(it.blocked.key),
                "why": it.why,
            }
            for it in (() if rejection is None else rejection.domains)
        ],
        "closest": [node_rejection(name, rejections[name]) for name in closest_nodes(rejections, CLOSEST_TO_MEMBER)],
        "wouldFit": [remedy_entry(remedy) for remedy in group.remedies],
    }


def _gang_entry(scheduler: Scheduler, key: GangKey) -> Document:
    groups = scheduler.handle.pod_groups
    spec, counts = groups.spec_of(key), groups.gang(key).counts
    return {
        "name": str(key),
        "api": key.dialect.value,
        "minCount": None if spec is None or spec.basic else spec.min_count,
        "pods": counts.waiting + counts.scheduled,
        "scheduled": counts.scheduled,
        "topology": [] if spec is None else [level.key for level in spec.levels],
    }


async def advise_group(scheduler: Scheduler, report: GroupReport) -> Sequence[Remedy]:
    """Return changes that make the group fit, each verified by a dry run. Yields to other tasks in between."""
    if report.placed is not None or not report.members or len(report.members) > MOST_MEMBERS:
        return ()
    found: dict[str, Remedy] = {}
    for remedies in (_fewer_members, _without_topology, _smaller_members, _relaxed_policies, _for_the_last_member):
        async for remedy in remedies(scheduler, report):
            found[remedy.text] = remedy
            if len(found) == SHOWN_REMEDIES:
                return list(found.values())
    return list(found.values())


async def _fits(scheduler: Scheduler, report: GroupReport, change: Change) -> Placed | None:
    await asyncio.sleep(0)
    return (await dry_run_group(scheduler.handle, report.keys, change)).placed


async def _fewer_members(scheduler: Scheduler, report: GroupReport) -> AsyncIterator[Remedy]:
    """Yield the largest minimal count that fits now, or the number of members that exist."""
    key, groups = report.keys[0], scheduler.handle.pod_groups
    spec, gang = groups.spec_of(key), groups.gang(key)
    if len(report.keys) > 1 or spec is None or spec.basic or spec.problem:
        return
    placeable = len(gang.pending) if report.rejection is None else len(report.rejection.beside)
    possible = len(gang.scheduled) + placeable
    if placeable == 0 or possible >= spec.min_count:
        return
    if placed := await _fits(scheduler, report, Change(min_count=possible)):
        text = f"with {COUNT_NAMES[key.dialect]} {possible} instead of {spec.min_count} it fits {_where(placed)}"
        yield Remedy("count", _node(placed), text)


async def _without_topology(scheduler: Scheduler, report: GroupReport) -> AsyncIterator[Remedy]:
    levels = scheduler.handle.pod_groups.levels(report.keys)[0]
    required = [level.key for level in levels if level.required]
    if report.rejection is None or not required:
        return
    if placed := await _fits(scheduler, report, Change(without_topology=True)):
        yield Remedy(
            "topology", _node(placed), f"without the topology constraint {', '.join(required)} it fits {_where(placed)}"
        )


async def _smaller_members(scheduler: Scheduler, report: GroupReport) -> AsyncIterator[Remedy]:
    """Yield the most CPUs of all members like the blocked member with which the group fits, by bisection."""
    blocked = None if report.rejection is None else report.rejection.blocked
    container = None if blocked is None else largest_container(blocked.request.containers, CPU)
    if blocked is None or container is None:
        return
    requested = container.requests[CPU]
    low, high, best = 1, -(-requested // MILLI) - 1, None
    while low <= high:
        cpus = (low + high) // 2
        change = Change(pod=_like(blocked, partial(_with_cpus, name=container.name, amount=cpus * MILLI)))
        if placed := await _fits(scheduler, report, change):
            low, best = cpus + 1, (cpus, placed)
        else:
            high = cpus - 1
    if best is not None:
        cpus, placed = best
        same = sum(pod.request.class_key == blocked.request.class_key for pod in report.members)
        yield Remedy(
            "size",
            _node(placed),
            f"container {container.name} with {cpus_text(cpus)} instead of {bare_amount(CPU, requested)} "
            f"in {count(same, 'pod')} fits {_where(placed)}",
        )


def _with_cpus(request: PodRequest, name: str, amount: int) -> PodRequest:
    container = next(it for it in request.containers if it.name == name)
    return with_amount(request, container, CPU, amount)


async def _relaxed_policies(scheduler: Scheduler, report: GroupReport) -> AsyncIterator[Remedy]:
    """Yield the smallest relaxation of a policy of all members like the blocked member with which the group fits."""
    blocked = None if report.rejection is None else report.rejection.blocked
    if blocked is None:
        return
    for relaxed_policies in (numa_policies, bind_policies):
        for text, request in relaxed_policies(blocked.request):
            change = Change(pod=_like(blocked, partial(_with_policies, relaxed=request)))
            if placed := await _fits(scheduler, report, change):
                yield Remedy("policy", _node(placed), f"{text} it fits {_where(placed)}")
                break


def _with_policies(request: PodRequest, relaxed: PodRequest) -> PodRequest:
    return replace(request, numa=relaxed.numa, bind=relaxed.bind)


def _like(blocked: Pod, change: Callable[[PodRequest], PodRequest]) -> Callable[[Pod], Pod]:
    """Return a change of the pods with the same request as the blocked pod."""

    def changed(pod: Pod) -> Pod:
        if pod.request.class_key != blocked.request.class_key:
            return pod
        return replace(pod, request=change(pod.request))

    return changed


async def _for_the_last_member(scheduler: Scheduler, report: GroupReport) -> AsyncIterator[Remedy]:
    """Yield proposals for the blocked member beside the placed members, if no other member is missing."""
    rejection = report.rejection
    if rejection is None or rejection.blocked is None or rejection.verdict is None or not _is_last(scheduler, report):
        return
    blocked = rejection.blocked
    rejections = rejection.verdict.rejections
    for proposals in _ON_ONE_NODE:
        await asyncio.sleep(0)
        for remedy in _beside_the_others(scheduler, report, blocked, rejections, proposals):
            yield Remedy(remedy.kind, remedy.node, f"pod {blocked.key.name}: {remedy.text}")


def _beside_the_others(
    scheduler: Scheduler,
    report: GroupReport,
    blocked: Pod,
    rejections: Mapping[str, Rejection],
    proposals: Callable[[Probe], Iterator[Remedy]],
) -> list[Remedy]:
    """Return proposals in one turn of the event loop, while the other members are assumed."""
    with placed_beside(scheduler.handle, report) as is_possible:
        if not is_possible:
            return []
        return list(proposals(Probe(scheduler, blocked, rejections, tuple(closest_nodes(rejections, CLOSEST)))))


def _is_last(scheduler: Scheduler, report: GroupReport) -> bool:
    groups, rejection = scheduler.handle.pod_groups, report.rejection
    if rejection is None:
        return False
    lacking = {key: groups.missing(key) for key in report.keys}
    for pod in report.members:
        if pod.key.uid in rejection.beside and pod.request.gang is not None:
            lacking[pod.request.gang.key] -= 1
    return sum(max(0, number) for number in lacking.values()) == 1


def _node(placed: Placed) -> str:
    return min(it.node for it in placed.placements.values())


def _where(placed: Placed) -> str:
    """Return ``on a, b and 2 more``."""
    nodes = sorted({it.node for it in placed.placements.values()})
    text = f"on {', '.join(nodes[:SHOWN_NODES])}"
    return text if len(nodes) <= SHOWN_NODES else f"{text} and {len(nodes) - SHOWN_NODES} more"


ADVISED_GROUPS: Final = 5
"""Maximum groups with a dry run and advice in the list of all groups. Groups with most pods come first."""

LISTED_MEMBERS: Final = 64
"""Maximum members of a group with a dry run and advice in the list. On 50 nodes this takes 0.15 s."""

LISTED_GROUPS: Final = 200
"""Maximum groups in the list."""

REPORT_SECONDS: Final = 30.0
"""Lifetime of a dry run and its advice in seconds, if the group and its message do not change."""


@dataclass(slots=True)
class WaitingGroups:
    """Waiting groups of a running scheduler, with cached reports and advice. One instance per process."""

    scheduler: Scheduler
    _known: TTLCache[object, tuple[GroupReport, Sequence[Remedy]]] = field(
        default_factory=lambda: TTLCache(maxsize=LISTED_GROUPS, ttl=REPORT_SECONDS)
    )
    _lock: asyncio.Lock = field(default_factory=asyncio.Lock)

    async def read(self) -> list[Document]:
        """Return the entries of the waiting groups, those with most waiting pods first."""
        async with self._lock:
            groups = self.scheduler.handle.pod_groups
            waiting: dict[tuple[GangKey, ...], int] = {}
            for key in groups:
                keys = groups.group(key)[0] if groups.gang(key).counts.waiting else ()
                if keys and keys not in waiting:
                    waiting[keys] = sum(groups.gang(each).counts.waiting for each in keys)
            ranked = sorted(waiting, key=lambda keys: (-waiting[keys], str(keys[0])))
            found: list[Document] = []
            for keys in ranked[:LISTED_GROUPS]:
                advised = len(found) < ADVISED_GROUPS and waiting[keys] <= LISTED_MEMBERS
                found.append(await self._entry(keys, advised))
            return found

    async def of(self, pod: Pod) -> Document | None:
        """Return the entry of the group of a pod with a dry run and advice; ``None`` for a pod without a group."""
        ref, groups = pod.request.gang, self.scheduler.handle.pod_groups
        if ref is None or ref.problem or pod.key.uid not in groups.gang(ref.key).pending:
            return None
        async with self._lock:
            return await self._entry(groups.group(ref.key)[0], advised=True)

    async def named(self, namespace: str, name: str) -> Document | None:
        """Return the entry of the group of a gang with a dry run and advice; ``None`` for an unknown gang."""
        groups = self.scheduler.handle.pod_groups
        if (key := groups.named(namespace, name)) is None:
            return None
        async with self._lock:
            return await self._entry(groups.group(key)[0], advised=True)

    async def _entry(self, keys: tuple[GangKey, ...], advised: bool) -> Document:
        await asyncio.sleep(0)  # decisions have priority
        gangs = [self.scheduler.handle.pod_groups.gang(key) for key in keys]
        waiting = (it for gang in gangs for uid, it in gang.pending.items() if uid not in gang.scheduled)
        members = sorted(waiting, key=lambda it: (it.since, it.uid))
        why = next((it.message for it in members if it.message), "")
        report, remedies = await self._report(keys, (why, len(members))) if advised else (None, ())
        why = why or ("" if report is None else report.why)
        waited = max((self.scheduler.dependencies.clock() - it.since for it in members), default=0.0)
        pods = [it.pod for it in members]
        return group_entry(self.scheduler, WaitingGroup(keys, pods, why.partition("\n")[0], waited, report, remedies))

    async def _report(self, keys: tuple[GangKey, ...], state: object) -> tuple[GroupReport, Sequence[Remedy]]:
        known = self._known.get((keys, state))
        if known is None:
            report = await dry_run_group(self.scheduler.handle, keys)
            known = self._known[keys, state] = report, await advise_group(self.scheduler, report)
        return known
