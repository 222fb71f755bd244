"""
The operator as Kopf runs it: ``kopf run -A -m koord_numa.operator`` loads this module, ``koord-numa run`` calls ``serve``.

Kopf is kept replaceable: the engine, mirrors and election run beside it and outlive it when it gives up. ``serve`` leaves it the kinds
that are few, see ``pod_watch``.
"""

import asyncio
import contextlib
import gc
import logging
import os
import signal
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import aiohttp
import kopf

from koord_numa.app.pod_source import PodSource
from koord_numa.app.runtime import DEFAULT_PORT, Options, Runtime
from koord_numa.cluster.backoff import Backoff
from koord_numa.handlers import triggers
from koord_numa.handlers.embedding import run_kopf
from koord_numa.handlers.settings import configure
from koord_numa.settings import Settings, load_settings

__all__ = ["options_from_environment", "serve", "triggers"]

GC_THRESHOLDS: Final = (10_000, 10, 1_000)
"""
Kopf makes much short-lived garbage per event, and the default thresholds walk the whole mirrored cluster again and again. The old
generation is left alone for long, and the young one is kept small: a walk over 100,000 young objects holds every bind for 0.3 s.
"""

STEADY: Final = 60.0
"""Seconds after which a run of Kopf counts as one that worked, and its end begins a new series of pauses."""

_log = logging.getLogger(__name__)


@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT)
@kopf.on.startup(errors=kopf.ErrorsMode.PERMANENT, registry=triggers.APART_FROM_PODS)
async def begin(settings: kopf.OperatorSettings, memo: kopf.Memo, **_: Any) -> None:
    """Put the scheduler together, unless whoever runs Kopf did so already. What is wrong at this point will not heal."""
    if "runtime" not in memo:
        gc.set_threshold(*GC_THRESHOLDS)
        memo.runtime = await Runtime.connect(options_from_environment(os.environ))
        memo.runtime.crew.failure.add_done_callback(lambda _: signal.raise_signal(signal.SIGTERM))
        memo.ends_with_kopf = True
        await memo.runtime.start()
    memo.reception = memo.runtime.reception
    configure(settings, memo.runtime.options.settings.scheduler_names)
    logging.getLogger("kopf.objects").setLevel(logging.WARNING)  # otherwise a line for every event


@kopf.on.login(errors=kopf.ErrorsMode.PERMANENT)
@kopf.on.login(errors=kopf.ErrorsMode.PERMANENT, registry=triggers.APART_FROM_PODS)
async def login(memo: kopf.Memo, **_: Any) -> kopf.ConnectionInfo:
    """The same server and credentials as our own requests."""
    return await connection_info(memo.runtime)


@kopf.on.cleanup()
@kopf.on.cleanup(registry=triggers.APART_FROM_PODS)
async def end(memo: kopf.Memo, **_: Any) -> None:
    """Under ``kopf run``, everything ends with Kopf; a task that died makes the process end with an error."""
    if "ends_with_kopf" in memo:
        runtime: Runtime = memo.runtime
        await runtime.stop()
        if runtime.crew.failure.done():
            raise kopf.PermanentError("a task of the scheduler has died") from runtime.crew.failure.result()


async def connection_info(runtime: Runtime) -> kopf.ConnectionInfo:
    """Credentials in Kopf's terms. A service account's token is read again whenever Kopf asks."""
    known = runtime.api.configuration
    header = await known.get_api_key_with_prefix("BearerToken") or ""
    scheme, _, token = header.rpartition(" ")
    return kopf.ConnectionInfo(
        server=str(known.host),
        ca_path=known.ssl_ca_cert,
        insecure=not known.verify_ssl,
        username=known.username or None,
        password=known.password or None,
        scheme=scheme or None,
        token=token or None,
        certificate_path=known.cert_file,
        private_key_path=known.key_file,
        proxy_url=known.proxy,
    )


def options_from_environment(environment: Mapping[str, str]) -> Options:
    """How ``kopf run`` is told what ``koord-numa run`` has flags for. Raises ``SettingsError`` or ``ValueError``."""
    config = environment.get("KOORD_NUMA_CONFIG", "")
    port = environment.get("KOORD_NUMA_METRICS_PORT", str(DEFAULT_PORT))
    return Options(
        settings=load_settings(Path(config)) if config else Settings(),
        identity=environment.get("KOORD_NUMA_IDENTITY", ""),
        elect=environment.get("KOORD_NUMA_LEADER_ELECT", "true").lower() not in ("false", "0", "no"),
        port=int(port) if port else None,
        pods=PodSource.KOPF,
    )


async def serve(options: Options) -> None:
    """
    Schedule until SIGTERM or SIGINT.

    Raises ``NoCredentials`` and ``OSError`` (port taken) at the beginning, and later whatever killed one of the tasks: then
    going on would be wrong. Kopf giving up is no such case: it is started again, and the engine serves what it knows meanwhile.
    """
    gc.set_threshold(*GC_THRESHOLDS)
    runtime = await Runtime.connect(options)
    stop = asyncio.Event()
    _on_signals(stop)
    runtime.crew.failure.add_done_callback(lambda _: stop.set())
    watching = None
    try:
        await runtime.start()
        watching = asyncio.create_task(_run_kopf(runtime, stop), name="kopf")
        watching.add_done_callback(lambda _: stop.set())
        await stop.wait()
    finally:
        stop.set()
        await runtime.stop()  # first: Kopf takes its time to end, and a standby waits for the lease
        if watching is not None:
            await watching
    if runtime.crew.failure.done():
        raise runtime.crew.failure.result()


async def _run_kopf(runtime: Runtime, stop: asyncio.Event) -> None:
    backoff = Backoff(initial=1.0, cap=30.0)
    clock = asyncio.get_running_loop().time
    while not stop.is_set():
        begun = clock()
        run = run_kopf(kopf.Memo(runtime=runtime), stop, lambda: _on_signals(stop), _table(runtime.options.pods))
        ended = asyncio.create_task(run, name="kopf operator")
        await asyncio.wait({ended})
        error = ended.exception()
        if error is None or stop.is_set():
            return
        if not _may_heal(error):
            raise error
        if clock() - begun > STEADY:
            backoff.reset()
        pause = backoff.pause()
        _log.error("Kopf gave up and is started again in %.1f s: %r", pause, error)
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(pause):
                await stop.wait()
        runtime.reception.doubt()


def _table(pods: PodSource) -> kopf.OperatorRegistry:
    return triggers.APART_FROM_PODS if pods is PodSource.OURS else kopf.get_default_registry()


def _may_heal(error: BaseException) -> bool:
    """Trouble with the API server, a kind that was uninstalled, or credentials; anything else is a bug."""
    from_kopf = type(error).__module__.partition(".")[0] == "kopf"
    # Kopf closes connections when credentials expire; aiohttp says so to who reads from them by a plain RuntimeError.
    closed = isinstance(error, RuntimeError) and str(error) == "Connection closed."
    return from_kopf or closed or isinstance(error, aiohttp.ClientError | OSError | TimeoutError)


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
