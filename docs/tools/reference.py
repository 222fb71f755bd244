# noqa: INP001  (a script, which a test loads by its path)
"""Write the reference page of the command line from the code (``make docs-output``). A test compares the page with the code."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

import click

from koord_numa.cli import main
from koord_numa.cli.parameters import Documented

FOLDER: Final = Path(__file__).parents[1] / "reference"


def pages() -> dict[str, str]:
    """Pages by file name."""
    return {"cli.md": cli_page()}


def cli_page() -> str:
    """Every command with its options."""
    parts = ["# Command line\n", "Generated from the code. `kubectl koord-numa` is the same program as `koord-numa`.\n"]
    root = click.Context(main, info_name="koord-numa")
    for name in main.list_commands(root):
        command = main.get_command(root, name)
        if command is None:
            continue
        context = click.Context(command, info_name=name, parent=root)
        usage = " ".join(command.collect_usage_pieces(context))
        parts.append(f"## {name}\n\n```\nkoord-numa {name} {usage}\n```\n")
        parts.append(" ".join((command.help or command.short_help or "").split()) + "\n")
        if isinstance(command, Documented):
            lines = "".join(f"# {comment}\nkoord-numa {arguments}\n" for comment, arguments in command.examples)
            parts.append(f"```\n{lines}```\n")
        parts.append("| option | meaning |\n| --- | --- |\n" + "".join(_options(command, context)))
    parts.append(
        "## Options of the connection\n\nAs in kubectl, before or after a command that reads a cluster.\n\n"
        "| option | meaning |\n| --- | --- |\n" + "".join(_options(main, root))
    )
    return "\n".join(parts)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in record[0]:  # every command has it
            names, text = (part.replace("|", "\\|") for part in record)
            yield f"| `{names}` | {' '.join(text.split())} |\n"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, text in pages().items():
        (FOLDER / file_name).write_text(text, encoding="utf-8")
