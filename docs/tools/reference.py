# noqa: INP001  (a script, which a test loads by its path)
"""Writes the reference pages from the code: ``make docs-output``. A test compares the pages with what this makes."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click

from koord_numa.cli import main
from koord_numa.settings import Settings

FOLDER: Final = Path(__file__).parents[1] / "reference"


def pages() -> dict[str, str]:
    """Pages by file name."""
    return {"cli.md": cli_page(), "configuration.md": configuration_page()}


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
        parts.append("| option | meaning |\n| --- | --- |\n" + "".join(_options(command, context)))
    return "\n".join(parts)


def _options(command: click.Command, context: click.Context) -> Iterator[str]:
    for parameter in command.get_params(context):
        record = parameter.get_help_record(context)
        if record is not None and "--help" not in record[0]:  # every command has it
            names, text = (part.replace("|", "\\|") for part in record)
            yield f"| `{names}` | {' '.join(text.split())} |\n"


def configuration_page() -> str:
    """Every field of the configuration with its type and default, from its JSON schema."""
    schema = Settings.model_json_schema(by_alias=True)
    parts = [
        "# Fields of the configuration\n",
        "Generated from the code; [Configuration](../configuration.md) explains them.\n",
    ]
    sections = [("KoordNumaConfiguration", schema), *sorted(schema.get("$defs", {}).items())]
    for name, part in sections:
        if "properties" in part:
            rows = "".join(_field(key, field) for key, field in part["properties"].items())
            parts.append(f"## {name}\n\n| field | type | default |\n| --- | --- | --- |\n{rows}")
        elif "enum" in part:
            words = ", ".join(f"`{word}`" if word else '`""`' for word in part["enum"])
            parts.append(f"## {name}\n\nOne of {words}.\n")
    return "\n".join(parts)


def _field(name: str, field: dict[str, Any]) -> str:
    default = "" if "default" not in field else f"`{_short(field['default'])}`"
    return f"| `{name}` | {_type(field)} | {default} |\n"


def _type(field: dict[str, Any]) -> str:
    if "$ref" in field:
        name = field["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "anyOf" in field:
        return " or ".join(_type(each) for each in field["anyOf"])
    if field.get("type") == "array":
        inner = field.get("items") or {}
        return f"list of {_type(inner)}" if inner else "list"
    if "const" in field:
        return f"`{field['const']}`"
    return str(field.get("type", "object"))


def _short(value: Any) -> str:
    text = str(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for file_name, text in pages().items():
        (FOLDER / file_name).write_text(text, encoding="utf-8")
