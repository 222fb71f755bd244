"""``koord-numa simulate -f pod.yaml``: where pods would go now, one after another. Nothing is created."""

from enum import Enum
from pathlib import Path
from typing import Any

import click
from rich.console import Console

from koord_numa.cli.cluster.manifest import pods, take
from koord_numa.cli.cluster.objects import documents
from koord_numa.cli.cluster.snapshot import CONFIG, FILES, KUBECONFIG, Access, Snapshot, snapshot_of
from koord_numa.cli.render.console import open_console
from koord_numa.cli.render.decisions import placement_text
from koord_numa.cli.render.placements import sentences
from koord_numa.core.request import Pod
from koord_numa.core.verdicts import Placement
from koord_numa.view.text import asked, count, policies


class _End(Enum):
    """What would become of a pod."""

    PLACED = "placed"
    AFTER_EVICTIONS = "placed when others have been evicted"
    WAITS = "waits"


@click.command(short_help="Say where the pods of a manifest would go.")
@click.option("-f", "--filename", "source", type=click.File(encoding="utf-8"), required=True, help="- reads stdin.")
@FILES
@KUBECONFIG
@CONFIG
@click.pass_context
def command(
    context: click.Context, source: Any, files: tuple[Path, ...], kubeconfig: Path | None, config: Path | None
) -> None:
    """
    Say where the pods of a manifest would go now, each after those before it; workloads count with all their replicas.

    Claims, volumes, budgets and priority classes in the manifest count as if they existed. No pod is evicted. Exits with 1 when some
    pod would wait.
    """
    console = open_console()
    access = Access(kubeconfig, config, files)
    try:
        found = list(documents(source.read(), "the manifest"))
    except UnicodeDecodeError as error:
        raise click.ClickException(f"the manifest is not text: {error}") from None
    objects = access.objects()
    manifest = take(found, objects)
    wanted = list(pods(manifest, objects))
    snapshot = snapshot_of(access.settings, objects)
    ends = [_try(pod, snapshot, console) for pod in wanted]
    console.print(f"\n{ends.count(_End.PLACED)} of {len(ends)} pods would be placed.")
    if _End.AFTER_EVICTIONS in ends:
        console.print(f"For {ends.count(_End.AFTER_EVICTIONS)} more, room would be made by evictions.")
    for kind, number in sorted(manifest.passed.items()):
        console.print(f"Passed over: {count(number, kind)}.")
    context.exit(0 if all(end is _End.PLACED for end in ends) else 1)


def _try(pod: Pod, snapshot: Snapshot, console: Console) -> _End:
    verdict = snapshot.decide(pod)
    console.print(f"[bold]{pod.key}[/]  {asked(pod)}  {policies(pod)}")
    if isinstance(verdict, Placement):
        snapshot.hold(pod, verdict)
        console.print(f"  {placement_text(verdict)}", markup=False)
        return _End.PLACED
    for line in sentences(verdict.why, console.width):
        console.print(line, markup=False)
    if verdict.clearance is None:
        return _End.WAITS
    snapshot.make_room(pod, verdict.clearance)
    return _End.AFTER_EVICTIONS
