"""``koord-numa completion SHELL``: print the completion script for koord-numa and for the kubectl plugin."""

from typing import Final

import click
from click.shell_completion import CompletionItem, ShellComplete, add_completion_class, get_completion_class

from koord_numa.cli.parameters import Documented

SHELLS: Final = ("bash", "zsh", "fish", "powershell")


class PowerShellComplete(ShellComplete):
    """Completion for PowerShell 5 and newer. The word under the cursor is the last argument of the completing process."""

    name = "powershell"
    source_template = """\
Register-ArgumentCompleter -Native -CommandName %(prog_name)s -ScriptBlock {
    param($word, $ast, $cursor)
    $words = $ast.CommandElements | Select-Object -Skip 1 | Where-Object { $_.Extent.EndOffset -lt $cursor } |
        ForEach-Object { $_.ToString() }
    $env:%(complete_var)s = "powershell_complete"
    $env:COMP_WORDS = ($words -join "`n")
    $env:COMP_WORD = $word
    try {
        %(prog_name)s | ForEach-Object {
            $value, $help = $_ -split "`t", 2
            [System.Management.Automation.CompletionResult]::new($value, $value, "ParameterValue", $(if ($help) { $help } else { $value }))
        }
    } finally {
        Remove-Item Env:%(complete_var)s, Env:COMP_WORDS, Env:COMP_WORD -ErrorAction SilentlyContinue
    }
}
"""

    def get_completion_args(self) -> tuple[list[str], str]:
        """Return the complete words before the cursor, and the word under the cursor."""
        import os

        return [word for word in os.environ.get("COMP_WORDS", "").split("\n") if word], os.environ.get("COMP_WORD", "")

    def format_completion(self, item: CompletionItem) -> str:
        """Return a suggestion and its help."""
        return f"{item.value}\t{item.help}" if item.help else str(item.value)


add_completion_class(PowerShellComplete)


@click.command(
    cls=Documented,
    short_help="Print a completion script.",
    examples=(
        ("For bash", "completion bash > koord-numa.bash"),
        ("For PowerShell", "completion powershell >> $PROFILE"),
    ),
)
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """
    Print a completion script: ``source <(koord-numa completion bash)``.

    kubectl completes its plugin by the program ``kubectl_complete-koord_numa`` of the package.
    """
    from koord_numa.cli import main  # main loads the commands, this one among them

    completion = get_completion_class(shell)
    if completion is None:
        raise click.ClickException(f"there is no completion for {shell}")
    click.echo(completion(main, {}, "koord-numa", "_KOORD_NUMA_COMPLETE").source())
