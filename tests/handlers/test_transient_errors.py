"""After which ends Kopf is started again, and after which the process ends."""

import asyncio

import aiohttp
import kopf
import pytest
from aiohttp.base_protocol import BaseProtocol

from koord_numa.handlers.embedding import is_transient


@pytest.mark.parametrize(
    ("error", "heals"),
    [
        (kopf.LoginError("out of credentials"), True),
        (aiohttp.ClientConnectionError(), True),
        (OSError(), True),
        (TypeError("a bug"), False),
        (KeyError("a bug"), False),
        (RuntimeError("a bug"), False),
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
