"""Questions to a running scheduler by its JSON API, at a URL such as ``http://localhost:10251`` behind ``kubectl port-forward``."""

import asyncio
from collections.abc import Mapping
from typing import Any, Final

import aiohttp
import click
import orjson

from koord_numa.cli.cluster.access import Access, Command
from koord_numa.cluster.client import Api
from koord_numa.cluster.credentials import NoCredentials

TIMEOUT: Final = 15.0


def with_scheduler(command: Command) -> Command:
    """``--scheduler`` for a command; it gets the URL, empty when none is given."""
    return click.option(
        "--scheduler",
        default="",
        envvar="KOORD_NUMA_SCHEDULER",
        metavar="URL",
        help="Ask the scheduler at this URL, such as http://localhost:10251, instead of judging by the objects.",
    )(command)


def ask_scheduler(access: Access, url: str, path: str) -> Mapping[str, Any]:
    """A document of the API. Raises ``click.ClickException`` with one line for the user."""
    try:
        return asyncio.run(_ask(access, url.rstrip("/") + path))
    except (aiohttp.ClientError, OSError, TimeoutError) as error:
        text = " ".join(str(error).split()) or type(error).__name__
        raise click.ClickException(
            f"the scheduler at {url} cannot be asked: {text}; is kubectl port-forward running?"
        ) from error


async def _ask(access: Access, url: str) -> Mapping[str, Any]:
    timeout = aiohttp.ClientTimeout(total=TIMEOUT)
    headers = {"Accept": "application/json", **(await _credentials(access) if url.startswith("https:") else {})}
    async with aiohttp.ClientSession(timeout=timeout, headers=headers) as session, session.get(url) as response:
        raw = await response.read()
    try:
        found = orjson.loads(raw)
    except orjson.JSONDecodeError:
        found = {"message": raw.decode(errors="replace").strip()}
    if response.status >= 300 or not isinstance(found, dict):
        message = found.get("message", "") if isinstance(found, dict) else ""
        raise click.ClickException(message or f"the scheduler answers {response.status}")
    return found


async def _credentials(access: Access) -> dict[str, str]:
    """The bearer token of the context, if it has one."""
    try:
        async with await access.connect() as api:
            return await _token(api)
    except NoCredentials:
        return {}


async def _token(api: Api) -> dict[str, str]:
    token = await api.configuration.get_api_key_with_prefix("BearerToken")
    return {"Authorization": token} if token else {}
