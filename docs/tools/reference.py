# noqa: INP001  (a script, which a test loads by its path)
"""Write the reference page of the command line from the code (``make docs-output``). A test compares the page with the code."""

from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Final

import click

from koord_numa.cli import main
from koord_numa.cli.parameters import Documented

FOLDER: Final = Path(__file__).parents[1] / "reference"
COMMON: Final = 3
"""Minimum number of commands of a common option."""


def pages() -> dict[str, str]:
    """Pages by file name."""
    return {"cli.md": cli_page()}


def cli_page() -> str:
    """Every command with its options. Options of several commands are described once."""
    parts = ["# Command line\n", "Generated from the code. `kubectl koord-numa` is the same program as `koord-numa`.\n"]
    root = click.Context(main, info_name="koord-numa")
    commands = {name: command for name in main.list_commands(root) if (command := main.get_command(root, name))}
    contexts = {name: click.Context(command, info_name=name, parent=root) for name, command in commands.items()}
    options = {name: list(_options(command, contexts[name])) for name, command in commands.items()}
    uses = Counter(option for found in options.values() for option in found)
    common = [option for option, count in uses.items() if count >= COMMON]
    for name, command in commands.items():
        usage = " ".join(command.collect_usage_pieces(contexts[name]))
        parts.append(f"## {name}\n\n```\nkoord-numa {name} {usage}\n```\n")
        parts.append(" ".join((command.help or command.short_help or "").split()) + "\n")
        if isinstance(command, Documented):
            lines = "".join(f"# {comment}\nkoord-numa {arguments}\n" for comment, arguments in command.examples)
            parts.append(f"```\n{lines}```\n")
        parts.append(_table(option for option in options[name] if option not in common))
        shared = [f"`{option[0].split(',')[0].split()[0]}`" for option in options[name] if option in common]
        if shared:
            parts.append(f"[Common options](#common-options): {', '.join(shared)}.\n")
    parts.append("## Common options\n\n" + _table(common))
    parts.append(
        "## Options of the connection\n\nAs in kubectl, before or after a command that reads a cluster.\n\n"
        + _table(_options(main, root))
    )
    return "\n".join(part for part in parts if part)


def _table(options: Iterable[tuple[str, str]]) -> str:
    """A table of options, or nothing without options."""
    rows = "".join(f"| `{names}` | {text} |\n" for names, text in options)
    return f"| option | meaning |\n| --- | --- |\n{rows}" if rows else ""


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Names and descriptions of the options of a command."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in record[0]:  # every command has it
            names, text = (part.replace("|", "\\|") for part in record)
            yield names, " ".join(text.split())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, text in pages().items():
        (FOLDER / file_name).write_text(text, encoding="utf-8")
