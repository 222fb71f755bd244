"""``koord-numa simulate -f pod.yaml``: show where pods would be placed now, one after another. Nothing is created."""

from collections import Counter
from collections.abc import Sequence
from math import inf
from pathlib import Path
from typing import TYPE_CHECKING

import click

from koord_numa.cli.cluster.access import Access, with_access, with_namespace
from koord_numa.cli.parameters import Documented
from koord_numa.cli.render.output import Output, with_output
from koord_numa.view.printable import printable

if TYPE_CHECKING:
    from koord_numa.cli.cluster.objects import ClusterObjects
    from koord_numa.cli.cluster.trace import TracePod


@click.command(
    cls=Documented,
    short_help="Show where the pods of a manifest would go.",
    examples=(
        ("One manifest", "simulate -f pod.yaml"),
        ("All manifests of a folder", "simulate -f manifests/ -n team"),
        ("Two configurations", "simulate -f pod.yaml --compare now.yaml planned.yaml"),
    ),
)
@click.option(
    "-f", "--filename", "sources", type=click.Path(path_type=Path, allow_dash=True), multiple=True, required=True,
    help="YAML or JSON file, folder, - for stdin, or list of pods of a trace (.csv); repeatable.",
)  # fmt: skip
@click.option(
    "--compare", nargs=2, type=click.Path(exists=True, dir_okay=False, path_type=Path), metavar="A B",
    help="Compare two configurations.",
)  # fmt: skip
@click.option("--stay", is_flag=True, help="Pods of a trace never leave.")
@with_namespace
@with_output
@with_access
@click.pass_context
def command(
    context: click.Context,
    sources: tuple[Path, ...],
    compare: tuple[Path, Path] | None,
    stay: bool,
    namespace: str | None,
    output: Output,
    access: Access,
) -> None:
    """
    Show where the pods of a manifest would go, in order and with all replicas of workloads.

    Groups include waiting members in the cluster. Claims, volumes, budgets and priority classes of the manifest count. No pod is
    evicted. A trace (openb_pod_list_*.csv) is replayed on the machines of --from openb_node_list_*.csv. Exits with 1 if a pod would
    wait, with --compare under any configuration.
    """
    from koord_numa.cli.cluster.simulation import simulate
    from koord_numa.cli.cluster.snapshot import snapshot_of
    from koord_numa.cli.render.decisions import (
        comparison_document,
        everything_placed,
        print_comparison,
        print_results,
        results_document,
    )
    from koord_numa.cli.render.tables import open_console
    from koord_numa.core.value_objects import replace

    objects = access.objects()
    wanted, passed = _arrivals(sources, objects, namespace or access.namespace)
    if stay:
        wanted = [replace(one, leaves=inf) for one in wanted]
    if compare is None:
        results = simulate(wanted, snapshot_of(access.settings, objects))
        if output.is_table:
            print_results(open_console(), results, passed)
        else:
            output.print_document(results_document(results), (f"pod/{one.pod.key.name}" for one in results))
        context.exit(0 if everything_placed(results) else 1)
    names = [path.name for path in compare]
    ways = [Access(config=path).settings for path in compare]
    sides = [simulate(wanted, snapshot_of(settings, objects), name) for name, settings in zip(names, ways, strict=True)]
    if output.is_table:
        print_comparison(open_console(), names, sides)
    else:
        output.print_document(comparison_document(names, sides), (f"pod/{one.pod.key.name}" for one in wanted))
    context.exit(0 if all(map(everything_placed, sides)) else 1)


def _arrivals(
    sources: Sequence[Path], objects: "ClusterObjects", namespace: str
) -> "tuple[list[TracePod], Counter[str]]":
    """
    Return the pods of manifests in their order, then those of traces by arrival, and the number of ignored objects by
    kind.
    """
    from koord_numa.cli.cluster.manifest import pods, read_manifests, take
    from koord_numa.cli.cluster.trace import SUFFIX, TracePod, read_trace_pods

    traces = [source for source in sources if source.suffix == SUFFIX]
    manifests = [source for source in sources if source.suffix != SUFFIX]
    passed: Counter[str] = Counter()
    found: list[TracePod] = []
    if manifests:
        manifest = take(read_manifests(manifests), objects, namespace)
        found.extend(TracePod(pod) for pod in pods(manifest, objects, namespace))
        passed = manifest.passed
        for sentence in manifest.unread:
            click.echo(printable(sentence), err=True)
    for path in traces:
        found.extend(read_trace_pods(path))
    return found, passed
