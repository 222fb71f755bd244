"""``koord-numa rebind NODE``: ask the scheduler to repack a node, and show the node before and after as pictures."""

import asyncio
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from koord_numa.cli.cluster.rebinds import NotTakenUp, RebindOrder, create_rebind, follow_rebind
from koord_numa.cli.cluster.snapshot import CONFIG, KUBECONFIG, Snapshot, read_snapshot
from koord_numa.cli.render.console import open_console
from koord_numa.cluster.client import Api, NoCredentials
from koord_numa.core.cpuset import CpuSet
from koord_numa.core.inventory import Inventory
from koord_numa.ports import ClusterError
from koord_numa.settings import Settings, SettingsError, load_settings
from koord_numa.view import terminal
from koord_numa.view.drawing import CpuHolder, Drawing

WIDEST = 160


@click.command(short_help="Repack the CPUs of the pods on a node.")
@click.argument("node")
@click.option("--dry-run", is_flag=True, help="Only show what would be done.")
@click.option("--wait", is_flag=True, help="Wait for the end and show the node as it is then.")
@click.option(
    "--deadline", type=click.IntRange(min=1), help="Seconds after which no further step is begun; usually 600."
)
@KUBECONFIG
@CONFIG
def command(
    node: str, dry_run: bool, wait: bool, deadline: int | None, kubeconfig: Path | None, config: Path | None
) -> None:
    """Repack the CPUs of the pods on NODE. No pod is ever worse off; see docs/rebind.md for the risks."""
    try:
        settings = load_settings(config) if config else Settings()
        ended_well = asyncio.run(_rebind(RebindOrder(node, dry_run, deadline), wait, kubeconfig, settings))
    except (SettingsError, NoCredentials, ClusterError, NotTakenUp) as error:
        raise click.ClickException(str(error)) from error
    if not ended_well:
        raise SystemExit(1)


async def _rebind(order: RebindOrder, wait: bool, kubeconfig: Path | None, settings: Settings) -> bool:
    console = open_console()
    async with await Api.connect(kubeconfig) as api:
        before = await read_snapshot(api, settings)
        _show(console, "before", _picture(before, order.node, {}))
        name = await create_rebind(api, order)
        console.print(f"RebindResource {name} created", style="bold")
        if not (wait or order.dry_run):
            console.print(f"follow it with: kubectl get rebindresource {name} --watch")
            return True
        status = await follow_rebind(api, name, console.print)
        if status["phase"] != "Succeed" and not status.get("result"):
            return False
        if order.dry_run and status.get("plan"):
            _show(console, "after, if it were done", _picture(before, order.node, _planned(status)))
        elif not order.dry_run:
            _show(console, "after", _picture(await read_snapshot(api, settings), order.node, {}))
        for line in _moves(status.get("plan" if order.dry_run else "result") or ()):
            console.print(line)
        return bool(status["phase"] == "Succeed")


def _picture(snapshot: Snapshot, node: str, moved: Mapping[str, CpuSet]) -> Drawing | None:
    """The node with some pods elsewhere; nothing for a node whose CPUs are unknown, which the rebind will say in words."""
    seen = next((seen for seen in snapshot.candidates() if seen.node.name == node), None)
    if seen is None or not isinstance(seen.offer, Inventory) or seen.offer.machine is None:
        return None
    held = sorted((held for held in seen.ledger if held.cpus), key=lambda held: str(held.pod))
    owners = [CpuHolder(str(one.pod), moved.get(str(one.pod), one.cpus)) for one in held]
    return Drawing(seen.offer.machine, owners, seen.offer.reserved)


def _planned(status: Mapping[str, Any]) -> dict[str, CpuSet]:
    return {f"{move['namespace']}/{move['name']}": CpuSet.parse(move["to"]) for move in status.get("plan") or ()}


def _show(console: Console, title: str, picture: Drawing | None) -> None:
    if picture is not None:
        console.rule(title)
        for line in terminal.lines(picture, min(console.width, WIDEST)):
            console.print(line)
        console.print()


def _moves(moves: Iterable[Mapping[str, str]]) -> Iterator[Text]:
    for move in moves:
        yield Text(f"  {move['namespace']}/{move['name']}: {move['from']} → {move['to']}")
