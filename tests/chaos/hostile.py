"""Objects that an API server accepts and that mean no good: extreme numbers, long lists, deep JSON, large texts, everything at once."""

import json
from random import Random
from typing import Any, Final

from koord_numa.wire import names
from tests.e2e.world import JsonObject

QUANTITIES: Final = (
    "1Ei", "8Ei", "9223372036854775807", "9223372036854775808", "1e30", "1m", "0", "1n", "0.0000001", "100Gi", "1000000", "4", "-1",
)  # fmt: skip
RESOURCES: Final = (
    "cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi", "nvidia.com/gpu", "example.com/thing", "pods",
    "kubernetes.io/batch-cpu", "example.com/" + "x" * 60,
)  # fmt: skip
INTEGERS: Final = (0, -1, 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 100)
WORDS: Final = (
    "",
    "LSR",
    "LSE",
    "lsr",
    "Restricted",
    "SingleNUMANode",
    "x" * 200,
    "0-4095",
    "-1",
    "NaN",
    "☃",
    "true",
    "null",
)
KEYS: Final = ("app", "zone", "kubernetes.io/hostname", "topology.kubernetes.io/zone", "example.com/" + "k" * 60)
OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt", "Bad")
EFFECTS: Final = ("NoSchedule", "NoExecute", "PreferNoSchedule", "Bad")


class Hostile:
    """Everything comes from one seed. ``nodes`` are names of nodes that may be made, bound to and published about."""

    def __init__(self, dice: Random) -> None:
        self._dice = dice
        self._count = 0
        self.nodes = [f"hostile-{number}" for number in range(5)]

    def any_object(self) -> JsonObject:
        """One object."""
        self._count += 1
        make = self._dice.choice(
            (self._pod, self._pod, self._pod, self._node, self._topology, self._topology, self._budget, self._rebind)
        )
        return make()

    def _many(self, most: int) -> int:
        return self._dice.choice((0, 1, 1, 2, 3, self._dice.randint(0, most)))

    def _amounts(self) -> dict[str, str]:
        return {self._dice.choice(RESOURCES): self._dice.choice(QUANTITIES) for _ in range(self._many(8))}

    def _text(self) -> str:
        depth = self._dice.choice((1, 10, 300, 5000))
        return self._dice.choice(
            (
                '{"a":' * depth + "1" + "}" * depth,
                "[" * depth + "]" * depth,
                "x" * self._dice.choice((10, 10_000, 200_000)),
                json.dumps({"cpuset": ",".join(map(str, range(0, 4096, 2))), "numaNodeResources": [{"node": 63}]}),
                json.dumps({"requiredCPUBindPolicy": self._word(), "preferredCPUBindPolicy": self._word()}),
                json.dumps({"numaTopologyPolicy": self._word(), "singleNUMANodeExclusive": self._word()}),
                json.dumps(
                    {"cpuset": self._word(), "numaNodeResources": [{"node": self._int(), "resources": self._amounts()}]}
                ),
                json.dumps(
                    {"detail": [{"id": n, "core": 0, "socket": self._int(), "node": 0} for n in range(self._many(500))]}
                ),
                json.dumps(
                    [{"cpuset": self._word(), "managedByKubelet": True, "name": "a", "namespace": "b", "uid": "c"}]
                ),
            )
        )

    def _word(self) -> str:
        return self._dice.choice(WORDS)

    def _int(self) -> int:
        return self._dice.choice(INTEGERS)

    def _annotations(self) -> dict[str, str]:
        known = (
            names.RESOURCE_SPEC, names.RESOURCE_STATUS, names.CPU_TOPOLOGY, "node.koordinator.sh/pod-cpu-allocs",
            "scheduling.koordinator.sh/numa-topology-spec", "node.koordinator.sh/cpu-shared-pools",
            "node.koordinator.sh/reservation", "node.koordinator.sh/resource-amplification-ratio",
            "kubelet.koordinator.sh/cpu-manager-policy",
        )  # fmt: skip
        return {self._dice.choice(known): self._text() for _ in range(self._many(4))}

    def _labels(self) -> dict[str, str]:
        found = {self._dice.choice(KEYS): self._dice.choice(("a", "b", "")) for _ in range(self._many(4))}
        found |= {f"l{number}": str(number) for number in range(self._dice.choice((0, 0, 0, 500)))}
        if self._dice.random() < 0.5:
            found["koordinator.sh/qosClass"] = self._dice.choice(("LSR", "LSE", "LS", "BE", "LSRX"))
        return found

    def _requirements(self) -> list[JsonObject]:
        return [
            {
                "key": self._dice.choice(KEYS),
                "operator": self._dice.choice(OPERATORS),
                "values": ["a"] * self._many(200),
            }
            for _ in range(self._many(20))
        ]

    def _term(self) -> JsonObject:
        term: JsonObject = {
            "topologyKey": self._dice.choice(KEYS),
            "labelSelector": {"matchExpressions": self._requirements()},
        }
        if self._dice.random() < 0.3:
            term["namespaceSelector"] = {}
        return term

    def _affinity(self) -> JsonObject:
        pod_terms = [self._term() for _ in range(self._many(100))]
        weighted = [
            {"weight": self._dice.randint(1, 100), "podAffinityTerm": self._term()} for _ in range(self._many(100))
        ]
        node_terms = [{"matchExpressions": self._requirements()} for _ in range(1 + self._many(50))]
        rules: JsonObject = {
            "requiredDuringSchedulingIgnoredDuringExecution": pod_terms,
            "preferredDuringSchedulingIgnoredDuringExecution": weighted,
        }
        nodes: JsonObject = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": node_terms}}
        return self._dice.choice(({"podAffinity": rules}, {"podAntiAffinity": rules}, {"nodeAffinity": nodes}, {}))

    def _containers(self) -> list[JsonObject]:
        count = self._dice.choice((1, 1, 2, 9, 100))
        return [
            {
                "name": f"c{number}",
                "image": "none",
                "resources": {"requests": self._amounts(), "limits": self._amounts()},
                "ports": [{"containerPort": 1, "hostPort": port} for port in range(self._dice.choice((0, 0, 200)))],
            }
            for number in range(count)
        ]

    def _metadata(self, name: str, **more: Any) -> JsonObject:
        return {"name": name, "labels": self._labels(), "annotations": self._annotations(), **more}

    def _pod(self) -> JsonObject:
        spread = [
            {
                "maxSkew": self._dice.choice((1, 2**31 - 1)),
                "topologyKey": self._dice.choice(KEYS),
                "whenUnsatisfiable": self._dice.choice(("DoNotSchedule", "ScheduleAnyway")),
                "labelSelector": {"matchExpressions": self._requirements()},
            }
            for _ in range(self._many(5))
        ]
        tolerations = [
            {"key": self._dice.choice(KEYS), "operator": "Exists", "effect": self._dice.choice(EFFECTS)}
            for _ in range(self._dice.choice((0, 1, 10_000 if self._dice.random() < 0.05 else 2)))
        ]
        spec: JsonObject = {
            "schedulerName": "koord-numa",
            "containers": self._containers(),
            "initContainers": [{**each, "name": f"i{each['name']}"} for each in self._containers()[: self._many(3)]],
            "affinity": self._affinity(),
            "topologySpreadConstraints": spread,
            "tolerations": tolerations,
            "priority": self._dice.choice((0, 2**31 - 1, -(2**31), 1000)),
            "overhead": self._amounts(),
        }
        if self._dice.random() < 0.3:
            spec["nodeName"] = self._dice.choice(self.nodes)
        if self._dice.random() < 0.1:
            spec["volumes"] = [{"name": "v", "persistentVolumeClaim": {"claimName": self._word() or "c"}}]
        metadata = self._metadata(f"hostile-{self._count}", namespace="default")
        return {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}

    def _node(self) -> JsonObject:
        taints = [
            {"key": self._dice.choice(KEYS) + str(number), "value": str(number), "effect": self._dice.choice(EFFECTS)}
            for number in range(self._dice.choice((0, 1, 10_000 if self._dice.random() < 0.1 else 3)))
        ]
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"} | self._amounts()
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": self._metadata(self._dice.choice(self.nodes)),
            "spec": {"taints": taints, "unschedulable": self._dice.random() < 0.5},
            "status": {"allocatable": amounts, "capacity": amounts},
        }

    def _topology(self) -> JsonObject:
        zones = [
            {
                "name": self._dice.choice((f"node-{number}", f"node-{number}", "node-99999999", "odd")),
                "type": "Node",
                "costs": [{"name": f"node-{other}", "value": self._int()} for other in range(self._many(8))],
                "resources": [
                    {
                        "name": name,
                        "capacity": amount,
                        "allocatable": self._dice.choice(QUANTITIES),
                        "available": amount,
                    }
                    for name, amount in self._amounts().items()
                ],
            }
            for number in range(self._dice.choice((1, 2, 9, 70)))
        ]
        options = (
            "topologyManagerPolicy",
            "topologyManagerScope",
            "cpuManagerPolicy",
            "topologyManagerMaxNUMANodes",
            "odd",
        )
        attributes = [{"name": self._dice.choice(options), "value": self._word()} for _ in range(self._many(1000))]
        return {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": self._metadata(self._dice.choice(self.nodes)),
            "topologyPolicies": [self._word() for _ in range(self._many(100))],
            "attributes": attributes,
            "zones": zones,
        }

    def _budget(self) -> JsonObject:
        return {
            "apiVersion": "policy/v1",
            "kind": "PodDisruptionBudget",
            "metadata": self._metadata(f"hostile-{self._count}", namespace="default"),
            "spec": {"minAvailable": self._int(), "selector": {"matchExpressions": self._requirements()}},
            "status": {"disruptionsAllowed": 2**31 - 1, "expectedPods": 0, "currentHealthy": 0, "desiredHealthy": 0},
        }

    def _rebind(self) -> JsonObject:
        return {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "RebindResource",
            "metadata": self._metadata(f"hostile-{self._count}"),
            "spec": {"nodeName": self._dice.choice(self.nodes), "dryRun": self._dice.random() < 0.5},
        }
