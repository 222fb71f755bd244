"""
Entry points of the operator: ``kopf run -A -m koord_numa.operator`` loads this module, ``koord-numa run`` calls ``serve``.

Under ``koord-numa run``, Kopf is restarted when it fails, while the scheduler, the informers and the leader election continue.
Under ``kopf run``, Kopf owns the process.
"""

import asyncio
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from koord_numa.app.runtime import Options, Runtime
from koord_numa.app.tasks import GarbageCollection
from koord_numa.cluster.serving import PORT_SETTING
from koord_numa.handlers import embedding, triggers
from koord_numa.handlers.embedding import EmbeddedKopf
from koord_numa.settings import PodSource, Settings, SettingsError, load_settings
from koord_numa.wire.names import DEFAULT_PORT

__all__ = ["options_from_environment", "serve", "triggers"]


async def start_from_environment() -> Runtime:
    """Create and start the scheduler under ``kopf run``. Errors end Kopf, because a retry would not help."""
    runtime = await Runtime.connect(options_from_environment(os.environ))
    GarbageCollection(lambda: runtime.scheduler.ready)
    runtime.failure.add_done_callback(lambda _: signal.raise_signal(signal.SIGTERM))
    await runtime.start()
    return runtime


for registry in triggers.REGISTRIES:
    embedding.attach(registry, start_from_environment)


def options_from_environment(environment: Mapping[str, str]) -> Options:
    """Return the options from the environment, for ``kopf run``. Raises ``SettingsError`` or ``ValueError``."""
    config = environment.get("KOORD_NUMA_CONFIG", "")
    port = environment.get(PORT_SETTING, str(DEFAULT_PORT))
    if port and not port.isdecimal():
        raise SettingsError(f"{PORT_SETTING}: {port!r} is not a port")
    settings = load_settings(Path(config)) if config else Settings()
    if settings.pod_source is not PodSource.KOPF:
        raise SettingsError(
            "podSource: Informer needs koord-numa run: under kopf run, Kopf's handlers watch waiting pods"
        )
    if namespace := environment.get("KOORD_NUMA_LEASE_NAMESPACE", ""):
        settings = settings.model_copy(update={"lease": settings.lease.model_copy(update={"namespace": namespace})})
    return Options(
        settings=settings,
        identity=environment.get("KOORD_NUMA_IDENTITY", ""),
        elect=environment.get("KOORD_NUMA_LEADER_ELECT", "true").lower() not in ("false", "0", "no"),
        port=int(port) if port else None,
    )


async def serve(options: Options) -> None:
    """
    Schedule until SIGTERM or SIGINT.

    Raises ``NoCredentials`` or ``OSError`` (port in use) at the start, and later the exception that ended a task. If Kopf fails because
    of the API server, it is restarted. The scheduler continues to decide on its cache.
    """
    runtime = await Runtime.connect(options)
    collection = GarbageCollection(lambda: runtime.scheduler.ready)
    stop = asyncio.Event()
    _on_signals(stop)
    runtime.failure.add_done_callback(lambda _: stop.set())
    watching = None
    try:
        await runtime.start()
        registry = triggers.registry(options.settings.pod_source)
        embedded = EmbeddedKopf(runtime, registry, lambda: _on_signals(stop), runtime.informers.needs_relist)
        watching = asyncio.create_task(embedded.run(stop), name="kopf")
        watching.add_done_callback(lambda _: stop.set())
        await stop.wait()
    finally:
        stop.set()
        collection.resume()
        await runtime.stop()  # first, because Kopf ends slowly and a standby waits for the lease
        if watching is not None:
            await watching
        await runtime.api.close()  # last, because Kopf may have opened a session while it ended
    if runtime.failure.done():
        raise runtime.failure.result()


def _on_signals(stop: asyncio.Event) -> None:
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stop.set)
