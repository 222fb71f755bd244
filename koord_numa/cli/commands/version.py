"""``koord-numa version``: print versions for bug reports."""

import platform
from contextlib import suppress
from typing import Final

import click

from koord_numa import __version__
from koord_numa.cli.parameters import Documented
from koord_numa.cli.render.output import Output, with_output
from koord_numa.view import document

PACKAGES: Final = ("kopf", "kubernetes-asyncio", "aiohttp", "numpy")
"""Dependencies that are relevant for bug reports."""


@click.command(
    cls=Documented,
    short_help="Print versions, for bug reports.",
    examples=(
        ("All versions", "version"),
        ("For a script", "version -o json"),
    ),
)
@with_output
def command(output: Output) -> None:
    """Print the versions of koord-numa and its dependencies."""
    from importlib.metadata import PackageNotFoundError, version

    found = {"koord-numa": __version__, "python": platform.python_version()}
    for package in PACKAGES:
        with suppress(PackageNotFoundError):  # not in the kubectl plugin's archive
            found[package] = version(package)
    if not output.is_table:
        output.print_document(document("Version", versions=found), found)
        return
    for name, text in found.items():
        click.echo(f"{name} {text}")
