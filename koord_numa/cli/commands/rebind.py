"""``koord-numa rebind NODE``: repack a node, or show the effect of a rebind with the node before and after."""

import io
import time
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from koord_numa.cli.cluster.access import Access, complete_names, with_access
from koord_numa.cli.parameters import Documented
from koord_numa.cli.render.output import Output, now, with_output
from koord_numa.core.value_objects import ValueObject
from koord_numa.view import Document, document
from koord_numa.wire import names

if TYPE_CHECKING:
    from rich.console import Console

    from koord_numa.cli.cluster.snapshot import Snapshot
    from koord_numa.cluster.blocking import BlockingApi
    from koord_numa.core.cpuset import CpuSet
    from koord_numa.core.rebind.plan import NodeFigures, RebindPlan
    from koord_numa.view.drawing import Drawing

POLL_SECONDS: Final = 0.3
PATIENCE: Final = 30.0
"""Seconds in which a scheduler must write a status for a new RebindResource."""


class NotTakenUp(Exception):
    """No scheduler has written a status in time."""


class RebindOrder(ValueObject):
    """Options of a rebind. ``deadline`` is in seconds, None for the default."""

    node: str
    dry_run: bool = False
    deadline: int | None = None
    move_memory: bool = False

    @property
    def document(self) -> dict[str, Any]:
        """The RebindResource. The server generates its name from that of the node."""
        spec: dict[str, Any] = {"nodeName": self.node, "rebindAction": "RebindCPU", "dryRun": self.dry_run}
        if self.move_memory:
            spec["moveMemory"] = True
        if self.deadline is not None:
            spec["deadlineInSeconds"] = self.deadline
        return {
            "apiVersion": f"{names.SCHEDULING_GROUP}/{names.REBIND_VERSION}",
            "kind": names.REBIND_KIND,
            "metadata": {"generateName": f"{self.node[:240]}-"},
            "spec": spec,
        }


def create_rebind(api: "BlockingApi", order: RebindOrder) -> Mapping[str, Any]:
    """Create and return the RebindResource. Raises ``ClusterError``, with advice if the cluster lacks the kind."""
    from koord_numa.cluster.resources import REBINDS, Call
    from koord_numa.ports import Gone

    try:
        created: Mapping[str, Any] = api.send(Call("create", REBINDS), order.document)
    except Gone as error:  # the only name in the request is that of the kind
        raise Gone(
            "the cluster has no RebindResources: install their definition (crds/rebindresources.yaml, or the chart), "
            "and let rebinds be handled by a running scheduler"
        ) from error
    return created


def follow_rebind(api: "BlockingApi", name: str, say: Callable[[str], None]) -> Mapping[str, Any]:
    """
    Wait for the end of a rebind and return it with its status.

    ``say`` is called with each new sentence. Raises ``NotTakenUp`` when no scheduler handles the rebind, and
    ``ClusterError``.
    """
    from koord_numa.cluster.resources import REBINDS, Call

    begun, reported = time.monotonic(), ""
    while True:
        found: Mapping[str, Any] = api.send(Call("get", REBINDS, "", name))
        status: Mapping[str, Any] = found.get("status") or {}
        phase, reason = str(status.get("phase") or ""), str(status.get("reason") or "")
        if reason != reported:
            reported = reason
            say(f"{phase}: {reason}")
        if phase in ("Succeed", "Failed"):
            return found
        if not phase and time.monotonic() - begun > PATIENCE:
            raise NotTakenUp(f"no scheduler has taken up RebindResource {name} in {PATIENCE:g} s: does koord-numa run?")
        time.sleep(POLL_SECONDS)


WIDEST: Final = 160


@click.command(
    cls=Documented,
    short_help="Repack the CPUs of the pods on a node.",
    examples=(
        ("Show the plan", "rebind worker-1 --dry-run"),
        ("Repack, and show the node before and after", "rebind worker-1 --wait"),
    ),
)
@click.argument("node", shell_complete=complete_names("nodes"))
@click.option("--dry-run", is_flag=True, help="Only show the plan.")
@click.option("--wait", is_flag=True, help="Wait for the end and show the node.")
@click.option(
    "--deadline", type=click.IntRange(min=1), help="Seconds after which no further step starts; default: 600."
)
@click.option("--move-memory", is_flag=True, help="Also move pods with huge pages or bound memory.")
@with_output
@with_access
def command(
    node: str, dry_run: bool, wait: bool, deadline: int | None, move_memory: bool, output: Output, access: Access
) -> None:
    # The prefix as kubectl takes it: `node/n1`.
    """Repack the CPUs of the pods on NODE. No pod gets worse; docs/rebind.md has the risks."""
    node = node.removeprefix("node/").removeprefix("nodes/")
    from rich.console import Console

    from koord_numa.cli.render.tables import open_console

    console = open_console() if output.is_table else Console(file=io.StringIO())
    order = RebindOrder(node, deadline=deadline, move_memory=move_memory)
    if dry_run:
        _show_plan(console, access.snapshot(), order, output)
        return
    if access.files:
        raise click.UsageError("--from needs --dry-run: a rebind changes a cluster")
    try:
        found = _rebind(access, order, console, wait=wait)
    except NotTakenUp as error:
        raise click.ClickException(str(error)) from error
    if not output.is_table:
        output.print_document(
            dict(found), (f"{names.REBIND_PLURAL}.{names.SCHEDULING_GROUP}/{found['metadata']['name']}",)
        )
    if wait and not _succeeded(found):
        raise SystemExit(1)


def _rebind(access: Access, order: RebindOrder, console: "Console", *, wait: bool) -> Mapping[str, Any]:
    """
    Create the RebindResource and show the node before.

    With ``wait``, also show the node after. Returns the last state of the object.
    """
    node, before = order.node, access.snapshot()
    if node not in {seen.node.name for seen in before.candidates()}:
        raise click.ClickException(f"there is no node {node}")
    _show(console, "before", _drawing(before, node, {}))
    created = access.ask(partial(create_rebind, order=order))
    name = str(created["metadata"]["name"])
    console.print(f"RebindResource {name} created", style="bold")
    if not wait:
        console.print(f"follow it with: kubectl get rebindresource {name} --watch")
        return created
    found = access.ask(lambda api: follow_rebind(api, name, console.print))
    if _succeeded(found) or found["status"].get("result"):
        _show(console, "after", _drawing(access.snapshot(), node, {}))
    for line in _moves(found["status"].get("result") or ()):
        console.print(line, markup=False)
    return found


def _succeeded(rebind: Mapping[str, Any]) -> bool:
    return bool((rebind.get("status") or {}).get("phase") == "Succeed")


def _show_plan(console: "Console", snapshot: "Snapshot", order: RebindOrder, output: Output) -> None:
    """Plan with the planner of the scheduler on the current objects, without a request to the scheduler."""
    from koord_numa.core.rebind.plan import plan_rebind
    from koord_numa.engine.rebind import layout_of_node

    node = order.node
    layout = layout_of_node(snapshot.scheduler.cache, node, snapshot.scheduler.settings, move_memory=order.move_memory)
    if isinstance(layout, str):
        raise click.ClickException(layout)
    plan = plan_rebind(layout)
    if not output.is_table:
        output.print_document(_plan_document(node, plan), (f"node/{node}",))
        return
    _show(console, "before", _drawing(snapshot, node, {}))
    if not plan:
        console.print("nothing to improve" if not plan.dropped else "no improvement is reachable with the spare CPUs")
        return
    ends = {str(move.pod): move.after for move in plan.moves}
    _show(console, "after, if it were done", _drawing(snapshot, node, ends))
    for line in _summary(plan, ends):
        console.print(line, markup=False)


def _plan_document(node: str, plan: "RebindPlan") -> Document:
    """Return the ``RebindPlan``: the steps in order, and the figures of the node before and after."""

    def figures(of: "NodeFigures") -> Document:
        return {"numaCrossings": of.crossings, "splitCores": of.split_cores}

    moves = [{"pod": str(move.pod), "from": str(move.before), "to": str(move.after)} for move in plan.moves]
    return document(
        "RebindPlan",
        generatedAt=now(),
        node=node,
        moves=moves,
        before=figures(plan.before),
        after=figures(plan.after),
        notMoved=[str(pod) for pod in plan.dropped],
    )


def _summary(plan: "RebindPlan", ends: "Mapping[str, CpuSet]") -> Iterator[str]:
    from koord_numa.view.text import count

    starts = {str(move.pod): move.before for move in reversed(plan.moves)}
    yield f"{count(len(ends), 'pod')} would move in {count(len(plan.moves), 'step')}; {_figures(plan.before, plan.after)}"
    for pod, cpus in ends.items():
        yield f"  {pod}: {starts[pod]} → {cpus}"
    for key in plan.dropped:
        yield f"  {key} cannot move: too few spare CPUs"


def _figures(before: "NodeFigures", after: "NodeFigures") -> str:
    parts = [
        ("NUMA crossings", before.crossings, after.crossings),
        ("split cores", before.split_cores, after.split_cores),
    ]
    return ", ".join(f"{name} {old} → {new}" for name, old, new in parts)


def _drawing(snapshot: "Snapshot", node: str, moved: "Mapping[str, CpuSet]") -> "Drawing | None":
    """Return the node with some pods moved, or None for a node with unknown CPUs, which the rebind reports as text."""
    from koord_numa.core.state.inventory import Inventory
    from koord_numa.view.drawing import CpuHolder, Drawing

    seen = next((seen for seen in snapshot.candidates() if seen.node.name == node), None)
    if seen is None or not isinstance(seen.offer, Inventory) or seen.offer.machine is None:
        return None
    held = sorted((held for held in seen.ledger if held.cpus), key=lambda held: str(held.pod))
    holders = [CpuHolder(str(one.pod), moved.get(str(one.pod), one.cpus)) for one in held]
    return Drawing(seen.offer.machine, holders, seen.offer.reserved)


def _show(console: "Console", title: str, drawing: "Drawing | None") -> None:
    from koord_numa.cli.render import cpu_map

    if drawing is not None:
        console.rule(title)
        for line in cpu_map.lines(drawing, min(console.width, WIDEST)):
            console.print(line, markup=False)
        console.print()


def _moves(moves: Iterable[Mapping[str, Any]]) -> Iterator[str]:
    for move in moves:
        yield f"  {move['namespace']}/{move['name']}: {move['from']} → {move['to']}"
