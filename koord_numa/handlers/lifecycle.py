"""
How Kopf starts, logs in and ends: the three handlers that connect a run of Kopf with the process around it.

Under ``koord-numa run`` the process exists first and outlives Kopf. Under ``kopf run`` the startup handler makes it, and the cleanup
handler ends it.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any, Final, Protocol

import kopf

from koord_numa.handlers.dispatch import Dispatcher
from koord_numa.handlers.settings import configure
from koord_numa.ports import ClusterError

LOGIN_PAUSE: Final = 1.0
"""Seconds until credentials are asked for again that cannot be had at the moment."""


class Host(Protocol):
    """The process around Kopf."""

    dispatcher: Dispatcher

    @property
    def server(self) -> str:
        """URL of the API server."""
        ...

    async def new_session(self) -> Any:
        """What Kopf uses of an ``aiohttp.ClientSession``, with fresh credentials. Kopf closes it. Raises ``Unavailable``."""
        ...

    @property
    def failure(self) -> asyncio.Future[BaseException]:
        """Done when a task of the process has died."""
        ...

    async def stop(self) -> None:
        """End everything."""
        ...


def attach(registry: kopf.OperatorRegistry, start: Callable[[], Awaitable[Host]]) -> None:
    """Register the handlers. ``start`` is called for a memo without a host: the process is Kopf's then."""

    @kopf.on.startup(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def startup(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
        # Under ``kopf run`` no process exists yet; under ``koord-numa run`` the memo brings it.
        if "host" not in memo:
            memo.host = await start()
            memo.host_ends_with_kopf = True
        memo.dispatcher = memo.host.dispatcher
        memo.queueing = settings.queueing
        configure(settings, memo.dispatcher.scheduler_names)
        logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # otherwise a line for every event

    @kopf.on.login(registry=registry, errors=kopf.ErrorsMode.PERMANENT)
    async def login(memo: kopf.Memo, **_: Any) -> kopf.AiohttpSession:
        """The server, credentials and impersonation of our own requests. Kopf asks again after a 401."""
        host: Host = memo.host
        try:
            session = await host.new_session()
        except ClusterError as error:
            # A token file that is being written. Any other error would leave Kopf waiting for credentials for ever.
            raise kopf.TemporaryError(str(error), delay=LOGIN_PAUSE) from error
        return kopf.AiohttpSession(server=host.server, aiohttp_session=session)

    @kopf.on.cleanup(registry=registry)
    async def cleanup(memo: kopf.Memo, **_: Any) -> None:
        """A task that died makes ``kopf run`` end with an error."""
        if "host_ends_with_kopf" in memo:
            host: Host = memo.host
            await host.stop()
            # The error is the exit status of ``kopf run``, by which its supervisor restarts it.
            if host.failure.done():
                raise kopf.PermanentError("a task of the scheduler has died") from host.failure.result()
