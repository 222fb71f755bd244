"""``koord-numa simulate -f pod.yaml``: where pods would go now, one after another. Nothing is created."""

import sys
from collections.abc import Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import Path

import click
from rich.console import Console

from koord_numa.cli.cluster.access import Access, with_access, with_namespace
from koord_numa.cli.cluster.manifest import Manifest, pods, read_manifests, take
from koord_numa.cli.cluster.snapshot import Snapshot, WouldWait, snapshot_of
from koord_numa.cli.cluster.views import now
from koord_numa.cli.render.columns import Columns
from koord_numa.cli.render.console import open_console
from koord_numa.cli.render.decisions import placement_text
from koord_numa.cli.render.output import Output, with_output
from koord_numa.cli.render.placements import sentences
from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.view.documents import Document, document
from koord_numa.view.text import asked, count, policies


class Outcome(Enum):
    """What would become of a pod."""

    PLACED = "placed"
    AFTER_EVICTIONS = "placed when others have been evicted"
    WAITS = "waits"


@dataclass(frozen=True, slots=True)
class Simulated:
    """One pod and the scheduler's answer."""

    pod: Pod
    verdict: Placement | WouldWait

    @property
    def outcome(self) -> Outcome:
        """What would become of it."""
        if isinstance(self.verdict, Placement):
            return Outcome.PLACED
        return Outcome.WAITS if self.verdict.clearance is None else Outcome.AFTER_EVICTIONS


@click.command(short_help="Say where the pods of a manifest would go.")
@click.option(
    "-f", "--filename", "sources", type=click.Path(path_type=Path, allow_dash=True), multiple=True, required=True,
    help="A file, a folder of YAML and JSON files, or - for stdin; may be given several times.",
)  # fmt: skip
@click.option(
    "--compare", nargs=2, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="A B",
    help="Two configurations, side by side.",
)  # fmt: skip
@with_namespace
@with_output
@with_access
@click.pass_context
def command(
    context: click.Context,
    sources: tuple[Path, ...],
    compare: tuple[Path, Path] | None,
    namespace: str | None,
    output: Output,
    access: Access,
) -> None:
    """
    Say where the pods of a manifest would go now, each after those before it; workloads count with all their replicas.

    Claims, volumes, budgets and priority classes in the manifest count as if they existed. No pod is evicted. Exits with 1 when some
    pod would wait.
    """
    found = read_manifests(sources)
    objects = access.objects()
    manifest = take(found, objects)
    wanted = list(pods(manifest, objects, namespace or access.namespace))
    if compare is not None:
        ways = [Access(config=path).settings for path in compare]
        sides = [simulate(wanted, snapshot_of(settings, objects)) for settings in ways]
        _print_comparison(open_console(), compare, sides)
        context.exit(0)
    results = simulate(wanted, snapshot_of(access.settings, objects))
    if output.is_table:
        _print(open_console(), results, manifest)
    else:
        listed = document("SimulationList", generatedAt=now(), items=[_entry(one) for one in results])
        output.print_document(listed, (f"pod/{one.pod.key.name}" for one in results))
    context.exit(0 if all(one.outcome is Outcome.PLACED for one in results) else 1)


def simulate(wanted: Sequence[Pod], snapshot: Snapshot) -> list[Simulated]:
    """Decide on each pod and count it for those after it, in the snapshot only. A bar shows progress in a terminal."""
    results = []
    with click.progressbar(wanted, label="simulating", file=sys.stderr, hidden=len(wanted) < 200) as bar:
        for pod in bar:
            verdict = snapshot.decide(pod)
            results.append(Simulated(pod, verdict))
            if isinstance(verdict, Placement):
                snapshot.hold(pod, verdict)
            elif verdict.clearance is not None:
                snapshot.make_room(pod, verdict.clearance)
    return results


def _print(console: Console, results: Sequence[Simulated], manifest: Manifest) -> None:
    for one in results:
        console.print(f"[bold]{one.pod.key}[/]  {asked(one.pod)}  {policies(one.pod)}")
        if isinstance(one.verdict, Placement):
            console.print(f"  {placement_text(one.verdict)}", markup=False)
        else:
            for line in sentences(one.verdict.why, console.width):
                console.print(line, markup=False)
    ends = [one.outcome for one in results]
    console.print(f"\n{ends.count(Outcome.PLACED)} of {len(ends)} pods would be placed.")
    if Outcome.AFTER_EVICTIONS in ends:
        console.print(f"For {ends.count(Outcome.AFTER_EVICTIONS)} more, room would be made by evictions.")
    for kind, number in sorted(manifest.passed.items()):
        console.print(f"Passed over: {count(number, kind)}.")


def _print_comparison(console: Console, names: Sequence[Path], sides: Sequence[Sequence[Simulated]]) -> None:
    """A line for each pod, and the sums."""
    rows = [[str(one.pod.key), _short(one), _short(other)] for one, other in zip(*sides, strict=True)]
    for line in Columns(("POD", *(path.name for path in names)), rows).lines():
        console.print(line)
    console.print()
    for path, side in zip(names, sides, strict=True):
        placed = sum(one.outcome is Outcome.PLACED for one in side)
        nodes = {one.verdict.node for one in side if isinstance(one.verdict, Placement)}
        console.print(f"{path.name}: {placed} of {len(side)} placed on {count(len(nodes), 'node')}")


def _short(one: Simulated) -> str:
    return placement_text(one.verdict) if isinstance(one.verdict, Placement) else one.outcome.value


def _entry(one: Simulated) -> Document:
    entry = {
        "pod": str(one.pod.key),
        "asks": asked(one.pod),
        "policies": policies(one.pod),
        "outcome": one.outcome.name,
    }
    if isinstance(one.verdict, Placement):
        placement = one.verdict
        numa = [numa for numa, _ in placement.numa]
        return {**entry, "node": placement.node, "numa": numa, "cpus": str(placement.cpus), "note": placement.note}
    return {**entry, "why": one.verdict.why}
