"""Pods, what protects, makes and selects them, and where they live."""

from collections.abc import Mapping
from typing import Final

from tests.chaos.hostile.values import RESOURCES, Values
from tests.e2e.world import JsonObject

COUNTED: Final = tuple(
    name for name in RESOURCES if name not in ("cpu", "memory", "ephemeral-storage", "pods", "kubernetes.io/batch-cpu")
)
WHOLE: Final = ("1Ei", "8Ei", "9223372036854775807", "0", "100Gi", "1000000", "4")
"""Resources that are requested in whole numbers, with equal limits."""

PRIORITIES: Final[Mapping[str, int]] = {"hostile-low": -(2**31), "hostile-prod": 9500, "hostile-high": 10**9}
"""Pods name their priority; the API server fills in the number."""


def priority_classes() -> list[JsonObject]:
    """To be there before the first pod."""
    about = {"apiVersion": "scheduling.k8s.io/v1", "kind": "PriorityClass"}
    return [{**about, "metadata": {"name": name}, "value": value} for name, value in PRIORITIES.items()]


CONTROLLERS: Final = (("v1", "ReplicationController"), ("apps/v1", "ReplicaSet"), ("apps/v1", "StatefulSet"))


class Workloads:
    """Pods, PodDisruptionBudgets, Namespaces, Services and controllers of pods."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def pod(self, name: str) -> JsonObject:
        """A pod of ours, with a node or without."""
        values = self._values
        spec: JsonObject = {
            "schedulerName": "koord-numa",
            "containers": self._containers(),
            "initContainers": [{**each, "name": f"i{each['name']}"} for each in self._containers()[: values.many(3)]],
            "affinity": self._affinity(),
            "topologySpreadConstraints": self._spread(),
            "tolerations": self._tolerations(),
            "priorityClassName": values.one("", *PRIORITIES),
        }
        if values.likely(0.3):
            spec["nodeName"] = values.node()
        if values.likely(0.2):
            spec["volumes"] = [
                {"name": f"v{number}", "persistentVolumeClaim": {"claimName": f"hostile-{values.dice.randrange(9)}"}}
                for number in values.several(10)
            ]
        if values.likely(0.2):
            spec["resourceClaims"] = [
                {"name": f"c{number}", "resourceClaimName": f"hostile-{values.dice.randrange(9)}"}
                for number in values.several(10)
            ]
        metadata = values.metadata(name, namespace="default") | self._owners()
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def budget(self, name: str) -> JsonObject:
        """A PodDisruptionBudget."""
        values = self._values
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": values.metadata(name, namespace="default"),
            "spec": {
                "minAvailable": values.one(0, 1, 2**31 - 1, "100%"),
                "selector": {"matchExpressions": values.requirements()},
            },
        }

    def namespace(self, name: str) -> JsonObject:
        """A Namespace; labels of namespaces decide which terms select what is in them."""
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": self._values.metadata(name)}

    def service(self, _: str) -> JsonObject:
        """A Service by one of a few names. Without a selector it selects nothing."""
        values = self._values
        spec: JsonObject = {"ports": [{"port": 1 + port} for port in values.several(100)] or [{"port": 1}]}
        if values.likely(0.9):
            spec["selector"] = self._some_labels()
        return {"apiVersion": "v1", "kind": "Service", "metadata": self._named(), "spec": spec}

    def replication_controller(self, _: str) -> JsonObject:
        """Return a ReplicationController. Its selector has the form of a Service selector."""
        selector = self._some_labels() | {"app": "a"}
        return self._controller("v1", "ReplicationController", selector, selector)

    def replica_set(self, _: str) -> JsonObject:
        """A selector with expressions."""
        return self._controller("apps/v1", "ReplicaSet", *self._selector())

    def stateful_set(self, _: str) -> JsonObject:
        """The same of another kind."""
        return self._controller("apps/v1", "StatefulSet", *self._selector())

    def _selector(self) -> tuple[JsonObject, JsonObject]:
        """A selector, and labels that it selects."""
        values, labels = self._values, self._some_labels() | {"app": "a"}
        listed = [
            {"key": "app", "operator": "In", "values": ["a"] * (1 + values.many(500))} for _ in values.several(50)
        ]
        absent = [{"key": f"no{number}", "operator": "DoesNotExist"} for number in values.several(200)]
        return {"matchLabels": labels, "matchExpressions": listed + absent}, labels

    def _controller(self, version: str, kind: str, selector: JsonObject, labels: JsonObject) -> JsonObject:
        pod = {"containers": [{"name": "c", "image": "none"}]}
        template = {"metadata": {"labels": labels}, "spec": pod}
        spec: JsonObject = {"replicas": 0, "selector": selector, "template": template}
        if kind == "StatefulSet":
            spec["serviceName"] = "any"
        return {"apiVersion": version, "kind": kind, "metadata": self._named(), "spec": spec}

    def _some_labels(self) -> JsonObject:
        values = self._values
        return {values.key(): values.one("a", "b", "") for _ in values.several(4)} | {
            f"l{number}": str(number) for number in values.several(500)
        }

    def _named(self) -> JsonObject:
        return self._values.metadata(f"hostile-{self._values.dice.randrange(9)}", namespace="default")

    def _owners(self) -> JsonObject:
        """Now and then a controller that may exist, or several that say that they are the one."""
        values = self._values
        if values.likely(0.6):
            return {}
        kinds = [
            values.one(*CONTROLLERS, ("v1", "Node"), ("odd.example.com/v1", "Odd")) for _ in range(values.one(1, 1, 3))
        ]
        return {
            "ownerReferences": [
                {
                    "apiVersion": version,
                    "kind": kind,
                    "name": f"hostile-{values.dice.randrange(9)}",
                    "uid": f"owner-{number}",
                    "controller": number == 0,
                }
                for number, (version, kind) in enumerate(kinds)
            ]
        }

    def _containers(self) -> list[JsonObject]:
        values = self._values
        return [
            {
                "name": f"c{number}",
                "image": "none",
                "resources": self._resources(),
                "ports": [{"containerPort": 1, "hostPort": 1 + port} for port in values.several(200)],
            }
            for number in range(1 + values.one(0, 0, 1, values.many(9), values.many(100)))
        ]

    def _resources(self) -> JsonObject:
        """Requests, and limits where the server demands them."""
        values = self._values
        requests = {values.one("cpu", "memory", "ephemeral-storage"): values.quantity() for _ in values.several(3)}
        limits = {name: amount for name, amount in requests.items() if values.likely(0.3)}
        if "cpu" in requests or "memory" in requests:
            whole = {values.one(*COUNTED): values.one(*WHOLE) for _ in values.several(8)}
            return {"requests": requests | whole, "limits": limits | whole}
        return {"requests": requests, "limits": limits}

    def _spread(self) -> list[JsonObject]:
        values = self._values
        return [
            {
                "maxSkew": values.one(1, 2**31 - 1),
                "topologyKey": values.key(),
                "whenUnsatisfiable": values.one("DoNotSchedule", "ScheduleAnyway"),
                "labelSelector": {"matchExpressions": values.requirements()},
            }
            for _ in values.several(3)
        ]

    def _tolerations(self) -> list[JsonObject]:
        values = self._values
        return [
            {"key": values.key(), "operator": "Exists", "effect": values.one("NoSchedule", "NoExecute", "")}
            for _ in values.several(5000)
        ]

    def _term(self) -> JsonObject:
        values = self._values
        term: JsonObject = {
            "topologyKey": values.key(),
            "labelSelector": {"matchExpressions": values.requirements()},
        }
        if values.likely(0.3):
            term["namespaceSelector"] = values.one({}, {"matchExpressions": values.requirements()})
        return term

    def _affinity(self) -> JsonObject:
        values = self._values
        rules: JsonObject = {
            "requiredDuringSchedulingIgnoredDuringExecution": [self._term() for _ in values.several(100)],
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": values.dice.randint(1, 100), "podAffinityTerm": self._term()} for _ in values.several(100)
            ],
        }
        nodes: JsonObject = {"requiredDuringSchedulingIgnoredDuringExecution": values.node_selector()}
        found: JsonObject = values.one({"podAffinity": rules}, {"podAntiAffinity": rules}, {"nodeAffinity": nodes}, {})
        return found
