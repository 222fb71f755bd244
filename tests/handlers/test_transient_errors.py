"""After which ends Kopf is started again, and after which the process ends."""

import asyncio
from json import JSONDecodeError
from typing import Any

import aiohttp
import kopf
import pytest
from aiohttp.base_protocol import BaseProtocol

from koord_numa.handlers.embedding import is_transient
from tests.tables import each_row


def caused_by(error: Exception) -> RuntimeError:
    """Return the exception that a watcher of Kopf raises when the task of an object fails."""
    failure = RuntimeError("Event processing has failed with an unrecoverable error.")
    failure.__cause__ = error
    return failure


@each_row(
    ("error", "heals"),
    [
        (kopf.LoginError("out of credentials"), True),
        (aiohttp.ClientConnectionError(), True),
        (OSError(), True),
        (TypeError("a bug"), False),
        (KeyError("a bug"), False),
        (RuntimeError("a bug"), False),
        (JSONDecodeError("no JSON", "", 0), True),
        (caused_by(aiohttp.ClientConnectionError()), True),
        (caused_by(KeyError("a bug")), False),
    ],
)
def test_which_ends_of_kopf_may_heal(error: Exception, heals: bool) -> None:
    assert is_transient(error) is heals


async def test_a_connection_that_kopf_closed_while_reading_may_heal() -> None:
    loop = asyncio.get_running_loop()
    closed = aiohttp.StreamReader(BaseProtocol(loop), 2**16, loop=loop)
    with pytest.raises(RuntimeError) as caught:
        await closed.readany()
    assert is_transient(caught.value)


def test_an_error_that_aiohttp_stumbles_over_may_heal() -> None:
    session: Any = None
    with pytest.raises(AttributeError) as caught:
        aiohttp.ClientSession.closed.fget(session)  # type: ignore[attr-defined]  # of a property
    assert is_transient(caught.value)
