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
COMMON: Final = 2
"""Minimum number of commands of a common option."""


def pages() -> dict[str, str]:
    """Pages by file name."""
    return {"cli.md": cli_page()}


def cli_page() -> str:
    """Every command with its options. Options of several commands are described once."""
    parts = [
        "# Command line\n",
        "Generated from the code. `kubectl koord-numa` is the same program. `--help` explains the examples.\n",
    ]
    root = click.Context(main, info_name="koord-numa")
    commands = {name: command for name in main.list_commands(root) if (command := main.get_command(root, name))}
    contexts = {name: click.Context(command, info_name=name, parent=root) for name, command in commands.items()}
    options = {name: list(_options(command, contexts[name])) for name, command in commands.items()}
    uses = Counter(option for found in options.values() for option in found)
    common: dict[tuple[str, str], str] = {}
    for option, count in uses.most_common():
        flag = option[0].split()[0]
        if count >= COMMON and option[1] and flag not in common.values():
            common[option] = flag
    for name, command in commands.items():
        lines = [f"koord-numa {name} {' '.join(command.collect_usage_pieces(contexts[name]))}"]
        if isinstance(command, Documented):
            lines += [f"koord-numa {arguments}" for _, arguments in command.examples if arguments != name]
        parts.append(f"## {name}\n\n" + " ".join((command.help or command.short_help or "").split()) + "\n")
        parts.append("```\n" + "".join(f"{line}\n" for line in lines) + "```\n")
        parts.append(_list(option for option in options[name] if option not in common))
        shared = [f"`{option[0].split(',')[0].split()[0]}`" for option in options[name] if option in common]
        if shared:
            parts.append(f"[Common](#common-options): {', '.join(shared)}.\n")
    parts.append("## Common options\n\n" + _list(common))
    connection = [option for option in _options(main, root) if option not in common and option[0] != "--version"]
    parts.append(
        "## Options of the connection\n\nAs in kubectl, before or after a command that reads a cluster: "
        + ", ".join(f"`{names}`" for names, _ in connection)
        + ".\n"
    )
    return "\n".join(part for part in parts if part)


def _list(options: Iterable[tuple[str, str]]) -> str:
    """A list of options with their descriptions. Arguments have none."""
    return "".join(f"- `{names}`: {text}\n" for names, text in options if text)


def _options(command: click.Command, context: click.Context) -> Iterator[tuple[str, str]]:
    """Names and descriptions of the options of a command."""
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in record[0]:  # every command has it
            names, text = record
            yield names.replace(" RANGE", ""), " ".join(text.split())


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, text in pages().items():
        (FOLDER / file_name).write_text(text, encoding="utf-8")
