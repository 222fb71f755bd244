"""
The cluster of this moment as the scheduler would see it after a restart: read once from the API objects, and nothing is written.

The engine that holds it is never run: it only counts, and answers what it would decide.
"""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

import click

from koord_numa.cli._onlooker import Onlooker
from koord_numa.cluster.client import Api, NoCredentials
from koord_numa.cluster.listing import Kind, list_all, list_first_served
from koord_numa.cluster.resources import NAMESPACES, NODES, PODS, TOPOLOGIES
from koord_numa.core.candidate import Candidate
from koord_numa.core.namespaces import Namespace
from koord_numa.core.node import Node, Topology
from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Placement, Rejection, Unschedulable
from koord_numa.engine.engine import Engine
from koord_numa.engine.outside import Outside
from koord_numa.engine.verdict_text import why_everywhere
from koord_numa.ports import ClusterError
from koord_numa.settings import Settings, SettingsError, load_settings
from koord_numa.wire.namespaces import parse_namespace
from koord_numa.wire.nodes import parse_node
from koord_numa.wire.pods import parse_pod
from koord_numa.wire.status import resource_status
from koord_numa.wire.topologies import parse_topology


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The cluster of one moment. ``pods`` are all pods, whoever schedules them."""

    engine: Engine
    pods: tuple[Pod, ...]
    topologies: Mapping[str, Topology]

    def find(self, namespace: str, name: str) -> Pod | None:
        """A pod by its name."""
        return next((pod for pod in self.pods if (pod.key.namespace, pod.key.name) == (namespace, name)), None)

    def candidates(self) -> list[Candidate]:
        """Every node, by name."""
        records = sorted(self.engine.state.nodes.items())
        return [seen for _, record in records if (seen := record.candidate()) is not None]

    def decide(self, pod: Pod) -> Placement | str:
        """Where the pod would go now, or why nowhere."""
        if pod.problem:
            return f"the pod cannot be understood: {pod.problem}"
        klass = self.engine.classes.of(pod)
        if klass is None:
            return f"the pod asks for {pod.scheduler}, which is none of our scheduler names"
        verdict = self.engine.desk.decider.decide(klass)
        return why_everywhere(verdict) if isinstance(verdict, Unschedulable) else verdict

    def answers(self, pod: Pod) -> dict[str, Placement | Rejection]:
        """What each node answers to the pod, by name; nothing for a pod that is not ours or not understood."""
        klass = None if pod.problem else self.engine.classes.of(pod)
        if klass is None:
            return {}
        found = {
            name: self.engine.desk.decider.try_node(klass, node=name, pod=pod)
            for name in sorted(self.engine.state.nodes)
        }
        return {name: answer for name, answer in found.items() if answer is not None}

    def hold(self, pod: Pod, placement: Placement) -> None:
        """Count the pod as if it were there, for those that are asked about next. Only here, not in the cluster."""
        self.engine.state.hold(pod, placement)


def snapshot_of(
    settings: Settings,
    nodes: Iterable[Node],
    topologies: Iterable[Topology],
    pods: Iterable[Pod],
    namespaces: Iterable[Namespace] = (),
) -> Snapshot:
    """A snapshot of these objects. Without namespaces, no ``namespaceSelector`` that asks for labels selects any."""
    onlooker = Onlooker()
    engine = Engine(settings, Outside(onlooker, onlooker, onlooker, resource_status))
    known, found = {topology.node: topology for topology in topologies}, tuple(pods)
    engine.namespaces.replace(namespaces)
    engine.replace_nodes(nodes)
    engine.replace_topologies(known.values())
    engine.replace_bound(pod for pod in found if pod.node)
    engine.state.look_again(patience=0)  # there is no later here: what nobody can tell is taken as published
    return Snapshot(engine, found, known)


async def read_snapshot(api: Api, settings: Settings) -> Snapshot:
    """List what a decision needs. Raises ``ClusterError``."""
    nodes = await list_all(api, Kind(NODES, parse_node))
    pods = await list_all(api, Kind(PODS, parse_pod))
    namespaces = await list_all(api, Kind(NAMESPACES, parse_namespace))
    kinds = tuple(Kind(resource, parse_topology, optional=True) for resource in TOPOLOGIES)
    topologies = await list_first_served(api, kinds)
    return snapshot_of(settings, nodes.objects, topologies, pods.objects, namespaces.objects)


@dataclass(frozen=True, slots=True)
class Access:
    """How the cluster is reached and which rules hold, from the command line."""

    kubeconfig: Path | None
    config: Path | None

    def snapshot(self) -> Snapshot:
        """The cluster of this moment. Raises ``click.ClickException`` with a sentence for the user."""
        try:
            settings = load_settings(self.config) if self.config else Settings()
            return asyncio.run(self._read(settings))
        except (SettingsError, NoCredentials, ClusterError) as error:
            raise click.ClickException(str(error)) from error

    async def _read(self, settings: Settings) -> Snapshot:
        async with await Api.connect(self.kubeconfig) as api:
            return await read_snapshot(api, settings)


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
