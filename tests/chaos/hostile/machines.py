"""Nodes, what is published about them, and demands to repack them."""

from tests.chaos.hostile.values import EFFECTS, QUANTITIES, Values
from tests.e2e.world import JsonObject

ATTRIBUTES = ("topologyManagerPolicy", "topologyManagerScope", "cpuManagerPolicy", "topologyManagerMaxNUMANodes", "odd")


class Machines:
    """Nodes, NodeResourceTopologies and RebindResources."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def node(self, _: str) -> JsonObject:
        """One of a few nodes, as it is now."""
        values = self._values
        taints = [
            {"key": f"{values.key()}{number}", "value": str(number), "effect": values.dice.choice(EFFECTS)}
            for number in values.several(5000)
        ]
        amounts = {"cpu": "4", "memory": "8Gi", "pods": "10"} | values.amounts()
        return {
            "apiVersion": "v1",
            "kind": "Node",
            "metadata": values.metadata(values.node()),
            "spec": {"taints": taints, "unschedulable": values.likely(0.5)},
            "status": {"allocatable": amounts, "capacity": amounts},
        }

    def topology(self, _: str) -> JsonObject:
        """What is published about one of them."""
        values = self._values
        return {
            "apiVersion": "topology.node.k8s.io/v1alpha2",
            "kind": "NodeResourceTopology",
            "metadata": values.metadata(values.node()),
            "topologyPolicies": [values.word() for _ in values.several(100)],
            "attributes": [
                {
                    "name": values.one(*ATTRIBUTES),
                    "value": values.one(values.word(), str(values.integer()), values.text()),
                }
                for _ in values.several(1000)
            ],
            "zones": [self._zone(number) for number in range(values.one(1, 2, 9, 70))],
        }

    def rebind(self, name: str) -> JsonObject:
        """A demand to repack one of them."""
        values = self._values
        spec = {"nodeName": values.one(values.node(), "n", "absent"), "dryRun": values.likely(0.5)}
        if values.likely(0.3):
            spec |= {"ttlSecondsAfterFinished": values.one(0, 2**31 - 1), "deadlineSeconds": values.one(1, 2**31 - 1)}
        return {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "RebindResource",
            "metadata": values.metadata(name),
            "spec": spec,
        }

    def _zone(self, number: int) -> JsonObject:
        values = self._values
        return {
            "name": values.one(f"node-{number}", f"node-{number}", "node-99999999", "odd"),
            "type": "Node",
            "costs": [{"name": f"node-{other}", "value": values.integer()} for other in values.several(8)],
            "resources": [
                {"name": name, "capacity": amount, "allocatable": values.one(*QUANTITIES), "available": amount}
                for name, amount in values.amounts().items()
            ],
        }
