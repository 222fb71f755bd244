"""``koord-numa completion SHELL``: print the completion script for koord-numa and for the kubectl plugin."""

from typing import Final

import click
from click.shell_completion import get_completion_class

SHELLS: Final = ("bash", "zsh", "fish")


@click.command(short_help="Print a completion script.")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print a script to be sourced: ``source <(koord-numa completion bash)``."""
    from koord_numa.cli import main  # noqa: PLC0415  (main loads the commands, this one among them)

    completion = get_completion_class(shell)
    if completion is None:
        raise click.ClickException(f"there is no completion for {shell}")
    click.echo(completion(main, {}, "koord-numa", "_KOORD_NUMA_COMPLETE").source())
