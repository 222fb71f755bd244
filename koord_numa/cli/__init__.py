"""
The command line. Each module of ``commands`` is one command of the same name.

Commands are imported on use, so that ``--help`` of one command does not load the others.
"""

import atexit
import gc
import os
import pkgutil
import sys
from importlib import import_module
from pathlib import Path
from typing import Any, Final

import click
from click.exceptions import NoArgsIsHelpError

from koord_numa import __version__
from koord_numa.cli import commands
from koord_numa.cli.cluster.access import with_connection
from koord_numa.cli.parameters import Examples, write_examples
from koord_numa.view.printable import printable

PLUGIN: Final = "kubectl koord-numa"
"""Name of the program when kubectl runs it as its plugin ``kubectl-koord_numa``."""

INTERRUPTED: Final = 130
"""Exit status after Ctrl-C, as of a process that SIGINT ends."""

EXAMPLES: Final[Examples] = (
    ("Free CPUs of every node, per NUMA node", "nodes"),
    ("Why a pod waits and what would make it fit", "explain web-1 -n team"),
    ("Where the pods of a manifest would go", "simulate -f pod.yaml"),
)


# The interpreter collects garbage several times when it ends, which takes 0.08 s of CPU for the objects of modules.
atexit.register(gc.freeze)


class _Misused(click.ClickException):
    """An invalid command line, reported in one line with a reference to the help."""

    exit_code = 2


def _in_one_line(error: click.ClickException, path: str) -> click.ClickException:
    """Return the error as a printable line. ``path`` is the command of an error without a context."""
    if isinstance(error, click.UsageError):
        path = error.ctx.command_path if error.ctx is not None else path
        return _Misused(f"{printable(' '.join(error.format_message().split()))} (see: {path} --help)")
    if (text := printable(error.message)) == error.message:
        return error
    return (_Misused if error.exit_code == _Misused.exit_code else click.ClickException)(text)


class _Commands(click.Group):
    """The command group: the modules of ``commands``, each with a ``click`` command named ``command``."""

    def main(self, args: Any = None, prog_name: str | None = None, *rest: Any, **options: Any) -> Any:
        """Run the program under the name by which it was started."""
        if prog_name is None:
            prog_name = PLUGIN if Path(sys.argv[0]).stem.startswith("kubectl-") else "koord-numa"
        if "_KOORD_NUMA_COMPLETE" in os.environ:
            import_module("koord_numa.cli.commands.completion")  # adds PowerShell to the shells of click
        return super().main(args, prog_name, *rest, **options)

    def invoke(self, ctx: click.Context) -> Any:
        try:
            return super().invoke(ctx)
        except NoArgsIsHelpError:  # its text is the help, not an error
            raise
        except KeyboardInterrupt:
            raise click.exceptions.Exit(INTERRUPTED) from None
        except ModuleNotFoundError as error:
            if str(error.name).startswith("koord_numa"):
                raise
            raise click.ClickException(
                f"this command needs the package {error.name}, which is not installed (pip install koord-numa)"
            ) from error
        except click.ClickException as error:
            told = _in_one_line(error, ctx.command_path)
            if told is error:
                raise
            raise told from error

    def make_context(self, *arguments: Any, **extra: Any) -> click.Context:
        """Parse the options before the command."""
        try:
            return super().make_context(*arguments, **extra)
        except NoArgsIsHelpError:  # its text is the help, not an error
            raise
        except click.UsageError as error:
            raise _in_one_line(error, str(arguments[0])) from error

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002  (click's signature)
        return sorted(module.name.replace("_", "-") for module in pkgutil.iter_modules(commands.__path__))

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in self.list_commands(ctx):
            return None
        command = import_module(f"{commands.__name__}.{cmd_name.replace('-', '_')}").command
        return command if isinstance(command, click.Command) else None

    def format_epilog(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        write_examples(EXAMPLES, ctx, formatter)


@click.command(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="koord-numa")
@with_connection
def main() -> None:
    """
    A NUMA-aware Kubernetes scheduler: never rejected by the kubelet, never silent, always explained.

    Options of the connection are accepted before and after the command.
    """
