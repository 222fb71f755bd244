"""The server answers any request: verbs raise ``ApiError`` only, and stored objects can be read."""

from collections.abc import Callable
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from koord_numa.sandbox.apiserver import ApiError, ApiServer
from koord_numa.sandbox.apiserver.backend import Target
from koord_numa.sandbox.apiserver.documents import clone
from koord_numa.sandbox.apiserver.http import present
from tests.sandbox.apiserver.client import binding, configmap, crd, lease, node, pod, rack
from tests.tables import each_row

scalars = (
    st.none()
    | st.booleans()
    | st.integers(-5, 5000)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.sampled_from(["", "x", "1", "Aé ", "a/b/c"])
)
values = st.recursive(
    scalars,
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["name", "a", "", "key"]), inner, max_size=3)
    ),
    max_leaves=6,
)

BUDGET = {
    "apiVersion": "policy/v1",
    "kind": "PodDisruptionBudget",
    "metadata": {"name": "b"},
    "spec": {
        "selector": {"matchLabels": {"a": "b"}, "matchExpressions": [{"key": "c", "operator": "In", "values": ["d"]}]},
        "minAvailable": "50%",
    },
}
EVENT = {
    "apiVersion": "events.k8s.io/v1",
    "kind": "Event",
    "metadata": {"name": "e"},
    "regarding": {"kind": "Pod", "namespace": "default", "name": "p"},
    "eventTime": "2026-01-01T00:00:00.000000Z",
    "reason": "r",
    "note": "n",
    "type": "Normal",
    "action": "a",
    "reportingController": "c",
    "reportingInstance": "i",
    "series": {"count": 2, "lastObservedTime": "2026-01-01T00:00:00.000000Z"},
}
RICH_POD = pod(
    labels={"a": "b"},
    tolerations=[{"key": "a", "operator": "Exists", "effect": "NoSchedule"}],
    nodeSelector={"a": "b"},
    initContainers=[
        {
            "name": "first",
            "image": "i",
            "resources": {"requests": {"cpu": "1"}, "limits": {"cpu": "2", "a.b/c": "1"}},
            "ports": [{"containerPort": 1}],
        }
    ],
)
OWNED = {
    **configmap(a="1"),
    "metadata": {
        "name": "c",
        "finalizers": ["a.b/c"],
        "annotations": {"a": "b"},
        "ownerReferences": [{"apiVersion": "v1", "kind": "Node", "name": "n", "uid": "1"}],
    },
}
PRIORITY = {
    "apiVersion": "scheduling.k8s.io/v1",
    "kind": "PriorityClass",
    "metadata": {"name": "high"},
    "value": 5,
    "globalDefault": True,
}
SAMPLES = [
    RICH_POD,
    node(capacity={"cpu": "8"}, conditions=[{"type": "Ready", "status": "True"}]),
    OWNED,
    lease(leaseDurationSeconds=1),
    BUDGET,
    EVENT,
    crd(),
    rack(),
    PRIORITY,
]

Damage = Callable[[Any], Any]


def places(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """All paths inside a document."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [place for name, found in inner for place in ((*path, name), *places(found, (*path, name)))]


def damaged(document: dict[str, Any], place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """A copy with another value at one place."""
    copied: dict[str, Any] = clone(document)
    here: Any = copied
    for step in place[:-1]:
        here = here[step]
    here[place[-1]] = value
    return copied


@st.composite
def damaged_samples(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any]]:
    """A sample and the same with one to three places damaged."""
    sample = draw(st.sampled_from(SAMPLES))
    document = sample
    for _ in range(draw(st.integers(1, 3))):
        document = damaged(document, draw(st.sampled_from(places(document))), draw(values))
        if not places(document):
            break
    return sample, document


def prepared() -> ApiServer:
    """A server that knows the custom kind."""
    server = ApiServer()
    server.store.create(crd())
    return server


@given(damaged_samples())
def test_damaged_objects_are_stored_or_refused(samples: tuple[dict[str, Any], dict[str, Any]]) -> None:
    sample, document = samples
    server = prepared()
    cluster = server._cluster
    kind, version = cluster.backend.registry.of_object(sample["apiVersion"], sample["kind"])
    namespace = "default" if kind.namespaced else ""
    try:
        created = cluster.writer.create(Target(kind, version, namespace), clone(document)).record
    except ApiError:
        return
    target = Target(kind, version, namespace, created.key.name)
    presentation = present(cluster.backend, target, "application/json;as=Table", "Object")
    assert presentation.object(created)
    for change in (lambda _: clone(sample), lambda _: clone(document)):
        try:
            cluster.writer.patch(target, change)
            cluster.writer.patch(Target(kind, version, namespace, created.key.name, "status"), change)
        except ApiError:
            continue
    cluster.deleter.delete(target)


@given(st.data())
def test_damaged_bindings_are_carried_out_or_refused(data: st.DataObject) -> None:
    good = binding("p", "n1", annotations={"a": "b"}, labels={"c": "d"}, uid="1")
    document = damaged(good, data.draw(st.sampled_from(places(good))), data.draw(values))
    store = ApiServer().store
    store.create(pod())
    try:
        store.bind("default", "p", document)
    except ApiError:
        assert "nodeName" not in store.get("pods", "p")["spec"]
    else:
        assert store.get("pods", "p")["spec"]["nodeName"]


@each_row("sample", SAMPLES, ids=lambda sample: sample["kind"])
def test_samples_are_valid(sample: dict[str, Any]) -> None:
    server = ApiServer() if sample["kind"] == "CustomResourceDefinition" else prepared()
    name = server.store.create(sample)["metadata"]["name"]
    kind, _ = server._cluster.backend.registry.of_object(sample["apiVersion"], sample["kind"])
    stored = server.store.get(kind.qualified, name)
    assert server.store.update(stored) == stored
