"""``koord-numa version``: what runs here, for bug reports."""

import platform
from importlib.metadata import version

import click

from koord_numa import __version__


@click.command(short_help="Print versions, for bug reports.")
def command() -> None:
    """Print the versions of koord-numa and of what it stands on."""
    click.echo(f"koord-numa {__version__}")
    click.echo(f"python {platform.python_version()}")
    for package in ("kopf", "kubernetes-asyncio", "aiohttp", "numpy"):
        click.echo(f"{package} {version(package)}")
