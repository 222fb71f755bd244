"""
The cluster of this moment as the scheduler would see it after a restart: read once from API objects, and nothing is written.

The engine that holds it is never run: it only counts, and answers what it would decide. What only a running scheduler knows, it does
not know: which nodes cool down, and which one a rebind works on.
"""

import asyncio
from collections.abc import Coroutine, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import click

from koord_numa.cli._facts import Facts, facts_in, read_facts
from koord_numa.cli._onlooker import Onlooker
from koord_numa.cluster.client import Api, NoCredentials
from koord_numa.cluster.resources import BUDGETS, CLAIMS, STORAGE_CLASSES, VOLUMES
from koord_numa.core.node import NodeResourceTopology
from koord_numa.core.node_snapshot import NodeSnapshot
from koord_numa.core.preempt.victims import PreemptionCandidate
from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Placement, Rejection
from koord_numa.engine.pod_status.messages import why_everywhere, with_remark
from koord_numa.engine.queue.nominator import Nomination
from koord_numa.engine.scheduler import Scheduler
from koord_numa.ports import ClusterError, Dependencies
from koord_numa.settings import Settings, SettingsError, load_settings
from koord_numa.wire.resource_status import resource_status

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Waits:
    """Why a pod would wait, in the scheduler's words, and the room that would be made for it."""

    why: str
    clearance: PreemptionCandidate | None = None


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster of one moment. ``pods`` are all pods, whoever schedules them."""

    engine: Scheduler
    pods: Sequence[Pod]
    topologies: Mapping[str, NodeResourceTopology]

    def find(self, namespace: str, name: str) -> Pod | None:
        """A pod by its name."""
        return next((pod for pod in self.pods if (pod.key.namespace, pod.key.name) == (namespace, name)), None)

    def candidates(self) -> list[NodeSnapshot]:
        """Every node, by name."""
        records = sorted(self.engine.cache.nodes.items())
        return [seen for _, record in records if (seen := record.candidate()) is not None]

    def decide(self, pod: Pod) -> Placement | Waits:
        """Where the pod would go now, or why nowhere."""
        klass = self.engine.classes.of(pod)
        if klass is None:
            names = ", ".join(self.engine.settings.scheduler_names)
            return Waits(f"the pod asks for {pod.scheduler}, which is none of our scheduler names: {names}")
        if untried := _untried(pod):
            return Waits(untried)
        handle = self.engine.handle
        node = handle.nominator.node_of(pod)
        freed = handle.selector.try_node(klass, node, pod) if node else None
        verdict = freed if isinstance(freed, Placement) else handle.selector.decide(klass)
        if isinstance(verdict, Placement):
            return verdict
        remark, clearance = _at_once(self.engine.preemption.foresee(pod, klass, verdict))
        return Waits(with_remark(why_everywhere(verdict), remark), clearance)

    def answers(self, pod: Pod) -> dict[str, Placement | Rejection]:
        """What each node answers to the pod, by name; nothing for a pod that is not ours or not tried."""
        klass = self.engine.classes.of(pod)
        if klass is None or _untried(pod):
            return {}
        found = {
            name: self.engine.handle.selector.try_node(klass, node=name, pod=pod)
            for name in sorted(self.engine.cache.nodes)
        }
        return {name: answer for name, answer in found.items() if answer is not None}

    def hold(self, pod: Pod, placement: Placement) -> None:
        """Count the pod as if it were there, for those that are asked about next. Only here, not in the cluster."""
        self.engine.cache.hold(pod, placement)

    def make_room(self, pod: Pod, clearance: PreemptionCandidate) -> None:
        """Keep room for the pod as if its victims were leaving now, for those that are asked about next. Only here."""
        klass = self.engine.classes.of(pod)
        if klass is None:
            raise AssertionError(f"{pod.key} is not ours")
        nominations = self.engine.handle.nominator
        for displaced in clearance.displaced:
            nominations.end(displaced.uid)
        nominations.begin(Nomination(pod, klass, clearance))
        self.engine.preemption.planner.evicted.update(victim.key.uid for victim in clearance.victims)


def _untried(pod: Pod) -> str:
    """Why a pod is not even tried, empty when it is."""
    if pod.problem:
        return f"the pod cannot be understood: {pod.problem}"
    if pod.deleting:
        return "the pod is being deleted"
    if pod.finished:
        return f"the pod has finished: {pod.phase}"
    return "the pod waits for its scheduling gates" if pod.gated else ""


def snapshot_of(settings: Settings, facts: Facts) -> Snapshot:
    """The state of an engine that was told these facts."""
    onlooker = Onlooker()
    engine = Scheduler(settings, Dependencies(onlooker, onlooker, onlooker, resource_status))
    engine.namespaces.replace(facts.namespaces)
    engine.replace_nodes(facts.nodes)
    topologies = {topology.node: topology for topology in facts.topologies}
    engine.replace_topologies(topologies.values())
    engine.replace_bound(pod for pod in facts.pods if pod.node)
    engine.cache.look_again(patience=0)  # there is no later here: what nobody can tell is taken as published
    engine.volumes.replace_claims(facts.claims)
    engine.volumes.replace_volumes(facts.volumes)
    engine.volumes.replace_classes(facts.classes)
    if facts.unread.keys().isdisjoint((CLAIMS, VOLUMES, STORAGE_CLASSES)):
        engine.volumes.synced()
    if BUDGETS not in facts.unread:
        engine.replace_budgets(facts.budgets)
    for pod in facts.pods:
        is_ours = settings.profile(pod.scheduler) is not None
        if not pod.node and pod.nominated and (settings.preemption.enabled or not is_ours):
            engine.observe_nominated(None, pod)
    return Snapshot(engine, facts.pods, topologies)


def _at_once(work: Coroutine[Any, Any, T]) -> T:
    """The result of work that only gives way to others now and then; here there are none."""
    try:
        while True:
            work.send(None)
    except StopIteration as end:
        return end.value  # type: ignore[no-any-return]  # StopIteration does not say what it carries


async def read_snapshot(api: Api, settings: Settings) -> Snapshot:
    """List what a decision needs. Raises ``ClusterError``."""
    return snapshot_of(settings, await read_facts(api))


@dataclass(frozen=True, slots=True)
class Access:
    """How the cluster is reached and which rules hold, from the command line. With ``files`` there is no cluster."""

    kubeconfig: Path | None
    config: Path | None
    files: tuple[Path, ...] = ()

    @property
    def settings(self) -> Settings:
        """The configuration. Raises ``click.ClickException``."""
        try:
            return load_settings(self.config) if self.config else Settings()
        except SettingsError as error:
            raise click.ClickException(str(error)) from error

    def facts(self) -> Facts:
        """Everything that decides. Raises ``click.ClickException`` with a sentence for the user."""
        if self.files:
            return facts_in(self.files)
        try:
            facts = asyncio.run(self._read())
        except (NoCredentials, ClusterError) as error:
            raise click.ClickException(str(error)) from error
        for why in facts.unread.values():
            click.echo(f"Not counted: {why}", err=True)
        return facts

    def snapshot(self) -> Snapshot:
        """The cluster of this moment. Raises ``click.ClickException`` with a sentence for the user."""
        return snapshot_of(self.settings, self.facts())

    async def _read(self) -> Facts:
        async with await Api.connect(self.kubeconfig) as api:
            return await read_facts(api)


KUBECONFIG = click.option(
    "--kubeconfig",
    type=click.Path(dir_okay=False, path_type=Path),
    help="Default: service account, $KUBECONFIG, ~/.kube/config.",
)
CONFIG = click.option(
    "--config",
    type=click.Path(dir_okay=False, path_type=Path),
    envvar="KOORD_NUMA_CONFIG",
    help="The scheduler's KoordNumaConfiguration; default: its defaults.",
)
FILES = click.option(
    "--from",
    "files",
    type=click.Path(exists=True, dir_okay=False, path_type=Path),
    multiple=True,
    help="Objects as kubectl get -o yaml prints them, instead of a cluster; may be given several times.",
)
