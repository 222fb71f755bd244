"""One fragmented machine on an embedded API server, and the scheduler in the tests' process, fed by watches as it is by Kopf."""

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import orjson

from koord_numa.app.runtime import Options, Runtime
from koord_numa.cluster.informer import Informer
from koord_numa.cluster.lister import ListedKind
from koord_numa.cluster.resources import PODS, REBINDS
from koord_numa.core.state.ledger import Ledger, holding_of
from koord_numa.engine.event_handlers import Callbacks
from koord_numa.handlers.triggers import waiting_pods
from koord_numa.sandbox.apiserver import ApiServer
from koord_numa.sandbox.machines.description import read_descriptions
from koord_numa.sandbox.machines.simulated_node import Fleet
from koord_numa.settings import Settings, load_settings
from koord_numa.wire import names, parse_pod, parse_rebind
from tests.cluster.objects import pod_document, until

JsonObject = dict[str, Any]

ROOT: Final = Path(__file__).parents[2]
CRDS: Final = (ROOT / "crds" / "noderesourcetopologies.yaml", ROOT / "crds" / "rebindresources.yaml")
RESOURCE: Final = f"{names.REBIND_PLURAL}.{names.SCHEDULING_GROUP}"
NODE: Final = "node"

MACHINE: Final = {"name": NODE, "sockets": 1, "numa": 2, "cores": 4, "threads": 2, "numbering": "adjacent"}
"""Two NUMA nodes of four cores: CPUs 0-7 and 8-15, siblings side by side."""

FRAGMENTED: Final = {"a": "0,2,4,8,10,12", "b": "1,3,9,11", "c": "13,15"}
"""Every pod splits cores, two cross NUMA nodes, and they hold one another up: it takes intermediate steps to get them apart."""

STEPS: Final = 6
"""So many steps the plan of the fragmented node has."""

SETTINGS: Final = load_settings(
    "apiVersion: koord-numa.io/v1alpha1\nkind: KoordNumaConfiguration\n"
    "lease: {duration: 2.0, renew: 1.2, retry: 0.2}\nsettleSeconds: 0.3\n"
    "apiBackoff: {initial: 0.02, max: 0.1, jitter: 0}\n"
)


def pod(name: str, cpus: int, **spec: Any) -> JsonObject:
    """A pod with CPUs of its own."""
    amounts = {"cpu": str(cpus), "memory": "1Gi"}
    containers = [{"name": "main", "image": "none", "resources": {"requests": amounts, "limits": amounts}}]
    labels = {names.QOS_CLASS: "LSR", names.PRIORITY_CLASS: "koord-prod"}
    annotations = {"example.com/other": f"of {name}"}
    return pod_document(name, {"containers": containers, **spec}, labels=labels, annotations=annotations)


@dataclass(slots=True)
class World:
    """A server, a simulated node, and as many schedulers as a test starts."""

    server: ApiServer
    rack: Fleet
    folder: Path
    runtimes: list[Runtime] = field(default_factory=list)
    moved: list[str] = field(default_factory=list)
    """The fragmented pods whose CPUs were changed, in order, as the server's store shows it."""

    def place(self, assigned: Mapping[str, str], **spec: Any) -> None:
        """Pods that run on exactly these CPUs, as Koordinator binds them: a cpuset and no NUMA amounts."""
        for name, cpus in assigned.items():
            count = sum(1 for _ in parse_cpus(cpus))
            created = self.server.store.create(pod(name, count, **spec))
            status = {"cpuset": cpus, "unknown": {"kept": name}}
            annotations = {names.RESOURCE_STATUS: orjson.dumps(status).decode()}
            metadata = {"uid": created["metadata"]["uid"], "annotations": annotations}
            self.server.store.bind("default", name, {"metadata": metadata, "target": {"name": NODE}})

    def ask(self, name: str = "tidy", node: str = NODE, **spec: Any) -> None:
        """Create a RebindResource."""
        self.server.store.create(
            {
                "apiVersion": f"{names.SCHEDULING_GROUP}/{names.REBIND_VERSION}",
                "kind": names.REBIND_KIND,
                "metadata": {"name": name},
                "spec": {"nodeName": node} | spec,
            }
        )

    def status(self, name: str = "tidy") -> JsonObject:
        """Return the status of the RebindResource."""
        found: JsonObject = self.server.store.get(RESOURCE, name).get("status") or {}
        return found

    def phase(self, name: str = "tidy") -> str:
        """Return the phase of the RebindResource."""
        return str(self.status(name).get("phase", ""))

    async def ended(self, name: str = "tidy") -> JsonObject:
        """The status once the rebind has ended."""
        await until(lambda: self.phase(name) in ("Succeed", "Failed"))
        return self.status(name)

    def assigned(self) -> dict[str, str]:
        """Return the CPUs of every pod with exclusive CPUs, from its annotation."""
        return {
            found["metadata"]["name"]: orjson.loads(text).get("cpuset", "")
            for found in self.server.store.list("pods")
            if (text := (found["metadata"].get("annotations") or {}).get(names.RESOURCE_STATUS))
        }

    def complaints(self) -> list[str]:
        """Return violations: wrong placements, CPUs held twice at any moment, pods that were changed otherwise."""
        lost = [
            found["metadata"]["name"]
            for found in self.server.store.list("pods", fields=f"spec.nodeName={NODE}")
            if found["metadata"]["annotations"].get("example.com/other") != f"of {found['metadata']['name']}"
            or (found["metadata"]["name"] in FRAGMENTED and "kept" not in str(found["metadata"]["annotations"]))
        ]
        return [*map(str, self.rack.refusals), *map(str, self.rack.double_holds()), *lost]

    def ledger_is_true(self, runtime: Runtime) -> bool:
        """Return true if the scheduler's ledger of the node agrees with the annotations."""
        bound = [parse_pod(found) for found in self.server.store.list("pods", fields=f"spec.nodeName={NODE}")]
        return runtime.scheduler.cache.nodes[NODE].ledger == Ledger.of(map(holding_of, bound))

    def follow(self) -> None:
        """Note from now on whose CPUs are changed."""
        seen = self.assigned()

        def note(_: str, found: JsonObject) -> None:
            name, cpus = found["metadata"]["name"], self.assigned().get(found["metadata"]["name"], "")
            if name in seen and cpus and cpus != seen[name]:
                seen[name] = cpus
                self.moved.append(name)

        self.server.store.subscribe("pods", note)

    @asynccontextmanager
    async def scheduler(self, *, elect: bool = False, settings: Settings = SETTINGS) -> AsyncIterator[Runtime]:
        """A scheduler for as long as the block lasts; it stops in good order at its end."""
        options = Options(settings, self.folder / "kubeconfig", f"replica-{len(self.runtimes)}", elect, port=None)
        runtime = await Runtime.connect(options)
        self.runtimes.append(runtime)
        await runtime.start()
        dispatcher = runtime.dispatcher
        rebinds = Informer(
            runtime.api,
            ListedKind(REBINDS, parse_rebind, optional=True),
            Callbacks(_nothing, dispatcher.stores.rebinds.observe),
        )
        waiting = Informer(
            runtime.api,
            ListedKind(PODS, dispatcher.parsers.waiting_pod, waiting_pods(settings.scheduler_names)),
            Callbacks(_nothing, dispatcher.stores.waiting_pods.observe),
        )
        runtime.tasks.start("watch of rebinds", rebinds.run())
        runtime.tasks.start("watch of waiting pods", waiting.run())
        try:
            yield runtime
            assert not runtime.tasks.failure.done(), runtime.tasks.failure.result()
        finally:
            await runtime.stop()


def parse_cpus(text: str) -> list[int]:
    """The ids in a cpu list."""
    parts = (part.split("-") for part in text.split(","))
    return [cpu for part in parts for cpu in range(int(part[0]), int(part[-1]) + 1)]


def _nothing(_: object) -> None:
    """Resyncs list, as beside Kopf."""


@asynccontextmanager
async def fragmented(
    folder: Path, assigned: Mapping[str, str] = FRAGMENTED, machines: list[JsonObject] | None = None
) -> AsyncIterator[World]:
    """A running machine with these pods, and no scheduler yet."""
    async with ApiServer(crds=CRDS, bookmark_interval=1.0) as server:
        rack = Fleet(server.store, read_descriptions({"machines": machines or [MACHINE]}, folder))
        rack.start()
        server.write_kubeconfig(folder / "kubeconfig")
        world = World(server, rack, folder)
        world.place(assigned)
        world.follow()
        try:
            yield world
        finally:
            rack.stop()
