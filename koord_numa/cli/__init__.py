"""
The command line. Each module of ``commands`` is one command of the same name.

Commands are imported on use, so that ``--help`` of one command does not load the others.
"""

import pkgutil
from importlib import import_module
from typing import Any

import click
from click.exceptions import NoArgsIsHelpError

from koord_numa import __version__
from koord_numa.cli import commands
from koord_numa.view.printable import printable


class _Misused(click.ClickException):
    """An invalid command line, reported in one line with a reference to the help."""

    exit_code = 2


class _Commands(click.Group):
    """The command group: the modules of ``commands``, each with a ``click`` command named ``command``."""

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoArgsIsHelpError:  # its text is the help, not an error
            raise
        except click.UsageError as error:
            path = error.ctx.command_path if error.ctx is not None else ctx.command_path
            text = printable(" ".join(error.format_message().split()))
            raise _Misused(f"{text} (see: {path} --help)") from error
        except click.ClickException as error:
            if (text := printable(error.message)) == error.message:
                raise
            raise (_Misused if error.exit_code == _Misused.exit_code else click.ClickException)(text) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = import_module(f"{commands.__name__}.{cmd_name.replace('-', '_')}").command
        return command if isinstance(command, click.Command) else None


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="koord-numa")
def main() -> None:
    """A NUMA-aware Kubernetes scheduler: never rejected by the kubelet, never silent, always explained."""
