# noqa: INP001  (a script, which a test loads by its path)
"""Writes the reference pages from the code: ``make docs-output``. A test compares the pages with what this makes."""

import asyncio
import re
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import click
from prometheus_client import Metric

from koord_numa.app.runtime import Options, Runtime
from koord_numa.cli import main
from koord_numa.cli.parameters import Documented
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.settings import Settings
from koord_numa.wire import names

FOLDER: Final = Path(__file__).parents[1] / "reference"


def pages() -> dict[str, str]:
    """Pages by file name."""
    return {
        "cli.md": cli_page(),
        "configuration.md": configuration_page(),
        "metrics.md": metrics_page(),
        "names.md": names_page(),
    }


def metrics_page() -> str:
    """Every family of both pages as a scheduler exposes it that has just been started."""
    rows = "".join(
        f"| `{family.name}{'_total' if family.type == 'counter' else ''}` | {family.type} | {family.documentation.rstrip('.')} |\n"
        for family in sorted(asyncio.run(_families()), key=lambda family: family.name)
    )
    return (
        "# Metrics as they are exposed\n\nGenerated from the code; [Metrics](../metrics.md) explains them, with their labels.\n\n"
        f"| metric | kind | help |\n| --- | --- | --- |\n{rows}"
    )


async def _families() -> list[Metric]:
    async with ApiServer() as server:
        with tempfile.TemporaryDirectory() as folder:
            kubeconfig = server.write_kubeconfig(Path(folder) / "kubeconfig")
            runtime = await Runtime.connect(Options(kubeconfig=kubeconfig, port=None))
            providers = runtime._status_providers()  # noqa: SLF001  (what the HTTP server is given, without serving)
            found = [*providers.metrics.collect(), *providers.nodes.collect()]
            await runtime.api.close()
    return found


def names_page() -> str:
    """Every label, annotation and attribute, by the section of ``wire/names.py`` that it stands in."""
    parts = [
        "# Names on the wire\n",
        "Generated from the code (`wire/names.py`); [Labels and annotations](../labels.md) explains them.\n",
    ]
    sections = re.split(r"^# (.+)$", Path(names.__file__).read_text(encoding="utf-8"), flags=re.MULTILINE)[1:]
    for title, text in zip(sections[::2], sections[1::2], strict=True):
        found = re.findall(r'^[A-Z_]+: Final = "([^"\s]+)"', text, re.MULTILINE)
        if found:
            parts.append(f"## {title}\n\n" + "".join(f"- `{name}`\n" for name in found))
    return "\n".join(parts)


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
