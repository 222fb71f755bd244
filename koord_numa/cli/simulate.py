"""``koord-numa simulate -f pod.yaml``: where pods would go now, one after another. Nothing is created."""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import click
import yaml
from rich.console import Console

from koord_numa.cli._cluster import CONFIG, KUBECONFIG, Access, Snapshot
from koord_numa.cli._console import open_console
from koord_numa.cli._report import sentences
from koord_numa.cli._verdict import placement_text
from koord_numa.cli._words import asked, policies
from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Placement
from koord_numa.wire.errors import WireError
from koord_numa.wire.pods import parse_pod

_MANY = 1000


@click.command()
@click.option("-f", "--filename", "source", type=click.File(encoding="utf-8"), required=True, help="- reads stdin.")
@KUBECONFIG
@CONFIG
@click.pass_context
def command(context: click.Context, source: Any, kubeconfig: Path | None, config: Path | None) -> None:
    """
    Say where the pods of a manifest would go now, each after those before it; workloads count with all their replicas.

    Exits with 1 when some pod would wait.
    """
    console = open_console()
    pods = list(_pods(source.read()))
    snapshot = Access(kubeconfig, config).snapshot()
    placed = [_try(pod, snapshot, console) for pod in pods]
    console.print(f"\n{sum(placed)} of {len(placed)} pods would be placed.")
    context.exit(0 if all(placed) else 1)


def _try(pod: Pod, snapshot: Snapshot, console: Console) -> bool:
    verdict = snapshot.decide(pod)
    console.print(f"[bold]{pod.key}[/]  {asked(pod)}  {policies(pod)}")
    if isinstance(verdict, Placement):
        snapshot.hold(pod, verdict)
        console.print(f"  {placement_text(verdict)}", markup=False)
        return True
    for line in sentences(verdict, console.width):
        console.print(line, markup=False)
    return False


def _pods(text: str) -> Iterator[Pod]:
    """The pods of all documents. Raises ``click.ClickException`` for whatever is none and makes none."""
    try:
        documents = [found for found in yaml.safe_load_all(text) if found]
    except yaml.YAMLError as error:
        raise click.ClickException(f"the manifest is not YAML: {error}") from None
    number = 0
    for document in documents:
        for obj in _instances(document):
            number += 1
            metadata = {"namespace": "default", **(obj.get("metadata") or {}), "uid": f"simulated-{number}"}
            try:
                pod = parse_pod({**obj, "apiVersion": "v1", "kind": "Pod", "metadata": metadata})
            except WireError as error:
                raise click.ClickException(str(error)) from None
            if pod.node:
                raise click.ClickException(f"{pod.key} names its node already (spec.nodeName)")
            yield pod


def _instances(document: Any) -> Iterator[Mapping[str, Any]]:
    """A Pod is itself; a workload is its template, as often as it says."""
    if not isinstance(document, dict):
        raise click.ClickException("the manifest has a document that is no Kubernetes object")
    spec = document.get("spec") or {}
    if document.get("kind") == "Pod":
        yield document
        return
    template = spec.get("template") if isinstance(spec, dict) else None
    if not isinstance(template, dict):
        raise click.ClickException(f"{document.get('kind') or 'an object without kind'} makes no pods")
    replicas = spec.get("replicas", spec.get("parallelism", 1))
    if not isinstance(replicas, int) or not 0 <= replicas <= _MANY:
        raise click.ClickException(f"replicas must be a number up to {_MANY}, found {replicas!r}")
    owner = document.get("metadata") or {}
    for number in range(1, replicas + 1):
        made = {"name": f"{owner.get('name')}-{number}", "namespace": owner.get("namespace") or "default"}
        yield {**template, "metadata": {**(template.get("metadata") or {}), **made}}
