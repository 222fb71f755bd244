"""
Reports about groups: which member blocks a group, beside how many others, and what each topology domain lacks.

The group cycle explains its rejections by ``explain_rejection``. ``dry_run_group`` decides on the current state for commands and advice.
Nothing stays assumed, and nothing is written.
"""

import asyncio
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Final

from koord_numa.core.objects.gangs import Dialect, GangKey, GangSpec, TopologyLevel
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement, Rejection, Unschedulable
from koord_numa.core.scheduling.gangs import Group, Member, Placed, Refused, decide_in_steps
from koord_numa.core.value_objects import ValueObject, replace, value_field
from koord_numa.engine.gangs.trial import ClusterTrial, Suspended, member_of
from koord_numa.engine.handle import Handle
from koord_numa.engine.object_events import why_everywhere
from koord_numa.engine.queue import PendingPod, RequestClass

Keys = tuple[GangKey, ...]

EXPLAINED: Final = 128
"""Maximum nodes that are evaluated to explain the rejection of a member. Bounds the explanation at about 30 ms."""

SHOWN_DOMAINS: Final = 5
"""Maximum topology domains in a report."""

EXPLAINED_MEMBERS: Final = 512
"""Maximum members that are assumed while the domains after the first are explained. Bounds the explanation at about 30 ms."""

HOSTNAME: Final = "kubernetes.io/hostname"


class DomainReport(ValueObject):
    """Topology domain in which a group does not fit. ``blocked`` is the first member that fits on no node of the domain."""

    name: str
    placed: int
    members: int
    blocked: Pod | None = None
    verdict: Unschedulable | None = None

    @property
    def why(self) -> str:
        """Reason in one line; empty if it was not determined."""
        if self.blocked is None or self.verdict is None:
            return ""
        return f"pod {self.blocked.key.name} fits on no node: {_first_line(why_everywhere(self.verdict))}"


class GroupRejection(ValueObject):
    """
    Rejection of a group. ``why`` is the reason, and ``message`` adds a line for each other topology domain.

    ``blocked`` is the member that fits on no node beside ``beside``. ``verdict`` has its rejections by the evaluated nodes; ``clipped``
    means that further nodes exist.
    """

    why: str
    blocked: Pod | None = None
    beside: Mapping[str, Placement] = value_field(default_factory=dict)
    verdict: Unschedulable | None = None
    clipped: bool = False
    domains: tuple[DomainReport, ...] = ()

    @property
    def message(self) -> str:
        """Message for the members."""
        return self.why + "".join(f"\n{domain.name}: {domain.why}" for domain in self.domains[1:] if domain.why)


class GroupReport(ValueObject):
    """
    Result of a dry run. ``members`` are the pending members that were decided on.

    ``waits`` is why the group may not be tried, for instance because members do not exist yet. Otherwise either ``placed`` or
    ``rejection`` is set; neither if the cluster changed too much during the decision.
    """

    keys: Keys
    members: tuple[Pod, ...]
    waits: str = ""
    placed: Placed | None = None
    rejection: GroupRejection | None = None

    @property
    def why(self) -> str:
        """Reason why the group waits; empty if it fits."""
        return self.waits or ("" if self.rejection is None else self.rejection.why)


class Change(ValueObject):
    """Change of a group whose effect a dry run shows. ``min_count`` applies to every gang, ``pod`` to every member."""

    pod: Callable[[Pod], Pod] = lambda pod: pod
    min_count: int | None = None
    without_topology: bool = False


NO_CHANGE: Final = Change()


def explain_rejection(
    handle: Handle, trial: ClusterTrial, group: Group, refused: Refused, pods: Mapping[str, Pod]
) -> GroupRejection:
    """Explain a rejection. The trial is begun, and no member is assumed. ``pods`` are the members by UID."""
    known = {member.uid: member for member in group.members}
    scheduled = handle.pod_groups.gang(refused.gang).counts.scheduled
    spec = handle.pod_groups.spec_of(refused.gang)
    count = 1 if spec is None else spec.min_count
    placed = sum(known[uid].gang == refused.gang for uid in refused.beside)
    rest = sum(member.gang == refused.gang for member in group.members) - placed - bool(refused.failed)
    why = (
        f"gang {refused.gang}: minCount ({count}) cannot be satisfied: "
        f"{scheduled + placed} scheduled, {max(0, rest)} remaining"
    )
    if group.levels:
        why += f"; {_domains_text(trial, group, refused)}"
    if refused.exhausted:
        why += "; the search for another order reached its limit"
    if not refused.failed:
        return GroupRejection(why)
    scene = _Scene(handle, trial, known)
    verdict = scene.verdict(refused.failed, refused.beside, refused.nodes, EXPLAINED)
    # A report for each shown domain. ``verdict`` is that of the first domain.
    found, assumed = [], 0
    for number, result in enumerate(refused.domains[:SHOWN_DOMAINS]):
        its = verdict if number == 0 else None
        assumed += len(result.beside)
        if number and result.failed and assumed <= EXPLAINED_MEMBERS:
            its = scene.verdict(result.failed, result.beside, result.nodes, EXPLAINED // SHOWN_DOMAINS)
        found.append(DomainReport(result.name, result.placed, result.members, pods.get(result.failed), its))
    domains = tuple(found)
    beside = f"beside {len(refused.beside)} placed members " if refused.beside else ""
    whole = len(handle.cache.nodes if refused.nodes is None else refused.nodes)
    some = f" (of {whole} nodes {EXPLAINED} were asked)" if whole > EXPLAINED else ""
    blocked = pods[refused.failed]
    why += f"; pod {blocked.key.name} fits {beside}on no node{some}: {why_everywhere(verdict)}"
    clipped = refused.nodes is not None or whole > EXPLAINED
    return GroupRejection(why, blocked, refused.beside, verdict, clipped, domains)


class _Scene(ValueObject):
    """A trial in which placed members are assumed again. ``members`` are all members by UID."""

    handle: Handle
    trial: ClusterTrial
    members: Mapping[str, Member]

    def verdict(
        self, failed: str, beside: Mapping[str, Placement], nodes: frozenset[str] | None, most: int
    ) -> Unschedulable:
        """Return the rejections of a member after these placements."""
        for uid, placement in beside.items():
            self.trial.assume(self.members[uid], placement)
        verdict = verdict_on(self.handle, self.trial.class_of(failed), nodes, most)
        self.trial.undo(*[self.members[uid] for uid in reversed(list(beside))])
        return verdict


def verdict_on(
    handle: Handle, request_class: RequestClass, nodes: frozenset[str] | None, most: int = EXPLAINED
) -> Unschedulable:
    """Return the rejections by at most ``most`` of these nodes (``None``: all nodes) in the current state."""
    cache, selector = handle.cache, handle.selector
    names = sorted(name for name in (cache.nodes if nodes is None else nodes) if cache.node_exists(name))
    answers = {name: selector.try_node(request_class, name) for name in names[:most]}
    return Unschedulable({name: answer for name, answer in answers.items() if isinstance(answer, Rejection)})


def contradiction(waiting: Sequence[Pod], scheduled: Iterable[Pod], specs: Iterable[GangSpec | None]) -> str:
    """Return why kube-scheduler's podGroupCycle rejects the group before it evaluates nodes; empty if it does not."""
    names = {pod.scheduler for pod in waiting}
    kubernetes = [pod for pod in waiting if pod.request.gang and pod.request.gang.key.dialect is Dialect.KUBERNETES]
    if kubernetes:
        kubernetes += scheduled
        names |= {pod.scheduler for pod in kubernetes}
    if len(names) > 1:
        return "all pods in a single pod group should have the same .spec.schedulerName set, got: " + " and ".join(
            sorted(names)
        )
    priorities = {pod.request.priority for pod in kubernetes}
    priorities |= {spec.priority for spec in specs if spec is not None and spec.priority is not None}
    if len(priorities) > 1:
        return "all pods in a single pod group should match the priority of the pod group, got: " + " and ".join(
            map(str, sorted(priorities))
        )
    return ""


def scheduled_pods(handle: Handle, keys: Iterable[GangKey]) -> list[Pod]:
    """Return the members of these gangs that have a node."""
    found = (handle.cache.pod(uid) for key in keys for uid in handle.pod_groups.gang(key).scheduled)
    return [pod for pod in found if pod is not None]


async def dry_run_group(handle: Handle, keys: Keys, change: Change = NO_CHANGE) -> GroupReport:
    """
    Decide on the pending members of these gangs as the group cycle does. Yields to other tasks between turns of about 0.2 s.

    A ``change`` is applied before. With a minimal count, fewer members than that need not exist.
    """
    groups = handle.pod_groups
    specs = [spec for key in keys if (spec := groups.spec_of(key)) is not None]
    members = _changed(handle, _waiting(handle, keys), change)
    pods = {it.uid: it.pod for it in members}
    report = GroupReport(keys, tuple(pods.values()))
    waits = groups.group(keys[0])[1] if change.min_count is None else ""
    if waits := waits or contradiction(report.members, scheduled_pods(handle, keys), specs):
        return replace(report, waits=waits)
    if not members:
        return report
    missing = {key: groups.missing(key) for key in keys}
    if change.min_count is not None:
        missing = {key: max(0, change.min_count - len(groups.gang(key).scheduled)) for key in keys}
    levels = () if change.without_topology else groups.levels(keys)[0]
    trial = ClusterTrial(handle, pods, groups.nodes_of(keys), interruptible=True)
    with trial.begun():
        group = Group(tuple(member_of(it) for it in members), missing, levels)
        answer = await _decide(trial, group, keys)
        if isinstance(answer, Refused) and trial.shared_claims:
            again = await _decide(trial, replace(group, levels=(*levels, TopologyLevel(HOSTNAME))), keys)
            answer = answer if isinstance(again, Refused) else again
        if isinstance(answer, Placed):
            return replace(report, placed=answer)
        if answer is None:
            return report
        return replace(report, rejection=explain_rejection(handle, trial, group, answer, pods))


@contextmanager
def placed_beside(handle: Handle, report: GroupReport) -> Iterator[bool]:
    """
    Assume the members that could be placed beside the blocked member, without ``await`` in the ``with`` block.

    Yield false if a member fits nowhere any more, or does not wait any more.
    """
    beside = {} if report.rejection is None else report.rejection.beside
    pods = {pod.key.uid: pod for pod in report.members}
    trial = ClusterTrial(handle, pods, handle.pod_groups.nodes_of(report.keys))
    with trial.begun():
        yield _all_wait(handle, report.keys, pods) and trial.resume(Suspended([*beside.items()], {})) is not None


async def _decide(trial: ClusterTrial, group: Group, keys: Keys) -> Placed | Refused | None:
    """Decide in turns. Return ``None`` if, after another task has run, a placed member fits nowhere or a member does not wait any more."""
    steps, moved = decide_in_steps(trial, group), None
    while True:
        try:
            steps.send(moved)
        except StopIteration as end:
            answer: Placed | Refused = end.value
            return answer
        suspended = trial.suspend()
        await asyncio.sleep(0)
        # A member that was bound meanwhile must not be assumed a second time.
        if not _all_wait(trial.handle, keys, trial.pods) or (moved := trial.resume(suspended)) is None:
            return None


def _all_wait(handle: Handle, keys: Keys, uids: Iterable[str]) -> bool:
    waiting = {it.uid for it in _waiting(handle, keys)}
    return waiting.issuperset(uids)


def _waiting(handle: Handle, keys: Keys) -> list[PendingPod]:
    """Return the members that may be decided on, in the order of the queue."""
    gangs = (handle.pod_groups.gang(key) for key in keys)
    pending = (it for gang in gangs for uid, it in gang.pending.items() if uid not in gang.scheduled)
    members = (it for it in pending if not (it.binding or it.pod.problem or _has_problem(it.pod)))
    return sorted(members, key=lambda it: (it.order, it.uid))


def _changed(handle: Handle, members: Iterable[PendingPod], change: Change) -> list[PendingPod]:
    """Return records of the changed pods. The records of the queue are not affected."""
    found = []
    for pending in members:
        pod = change.pod(pending.pod)
        request_class = pending.request_class if pod is pending.pod else handle.classes.of(pod)
        if request_class is not None:
            found.append(PendingPod(pod, request_class, pending.since))
    return found


def _has_problem(pod: Pod) -> bool:
    return pod.request.gang is None or bool(pod.request.gang.problem)


def _domains_text(trial: ClusterTrial, group: Group, refused: Refused) -> str:
    keys = [level.key for level in group.levels if level.required] or [level.key for level in group.levels]
    domains = trial.domains(keys)
    if not domains:
        return f"0/0 placements are available: no domain by {', '.join(keys)} has all running members"
    best = [f"{result.name} places {result.placed} of {result.members}" for result in refused.domains[:SHOWN_DOMAINS]]
    return f"0/{len(domains)} placements are available{': ' if best else ''}{', '.join(best)}"


def _first_line(text: str) -> str:
    return text.partition("\n")[0]
