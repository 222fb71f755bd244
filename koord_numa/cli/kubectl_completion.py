"""
``kubectl_complete-koord_numa``: completion for the kubectl plugin.

kubectl runs it with the words typed so far and expects one suggestion per line, then a directive (kubectl's
``pkg/cmd/plugin_completion.go``). The directive is a bit mask of Cobra's ``ShellCompDirective``.
"""

import sys
from typing import Final

import click
from click.shell_completion import ShellComplete

from koord_numa.cli import main

NO_FILES: Final = 4
"""ShellCompDirectiveNoFileComp."""

DEFAULT: Final = 0
"""ShellCompDirectiveDefault: the shell completes files."""


def complete() -> None:
    """Print suggestions for the last word."""
    words = sys.argv[1:] or [""]
    found = ShellComplete(main, {}, "kubectl koord-numa", "").get_completions(words[:-1], words[-1])
    files = any(item.type in ("file", "dir") for item in found)
    for item in found:
        if item.type == "plain":
            click.echo(f"{item.value}\t{item.help}" if item.help else item.value)
    click.echo(f":{DEFAULT if files else NO_FILES}")
