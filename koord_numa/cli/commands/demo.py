"""``koord-numa demo``: fill a simulated rack through the real operator, and show placements and waiting pods."""

import click

from koord_numa.cli.parameters import Documented, FiniteRange


@click.command(
    cls=Documented,
    short_help="Fill a simulated rack through the real operator.",
    examples=(
        ("Fill a simulated rack", "demo"),
        ("Keep the cluster", "demo --keep"),
    ),
)
@click.option("--keep", is_flag=True, help="Keep the cluster running for kubectl.")
@click.option("--seed", type=int, help="Submit the pods in another order.")
@click.option("--speed", type=FiniteRange(0.1, 10.0), default=1.0, help="Factor of the submission rate.")
def command(keep: bool, seed: int | None, speed: float) -> None:
    """Fill nine simulated machines and show the result, in about 15 seconds."""
    # Before the imports, which take a second
    click.echo("Starting an API server in memory, simulated machines and the operator ...")
    from koord_numa.cli.demo.show import run_demo

    raise SystemExit(run_demo(keep=keep, seed=seed, speed=speed))
