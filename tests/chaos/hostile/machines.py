"""Nodes, what is published about them and their devices, and demands to repack them."""

from tests.chaos.hostile.values import EFFECTS, QUANTITIES, Values
from tests.e2e.world import JsonObject

ATTRIBUTES = ("topologyManagerPolicy", "topologyManagerScope", "cpuManagerPolicy", "topologyManagerMaxNUMANodes", "odd")


class Machines:
    """Nodes, NodeResourceTopologies, Device objects and RebindResources."""

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
        """Return the published topology of a machine."""
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

    def devices(self, _: str) -> JsonObject:
        """The devices by id of one of them."""
        values = self._values
        metadata = values.metadata(values.node())
        if values.likely(0.5):
            metadata["labels"]["app.kubernetes.io/managed-by"] = "koord-numa"
        if values.likely(0.3):
            metadata["labels"]["node.koordinator.sh/gpu-partition-policy"] = "Honor"
            metadata["labels"]["node.koordinator.sh/gpu-model"] = values.one("H100", "NVIDIA-H800", values.word())
        return {
            "apiVersion": "scheduling.koordinator.sh/v1alpha1",
            "kind": "Device",
            "metadata": metadata,
            "spec": {"devices": [self._device(number) for number in range(values.one(0, 1, 8, 16, 300))]},
        }

    def _device(self, number: int) -> JsonObject:
        values = self._values
        functions = [{"minor": n, "busID": values.one(f"{number}:{n}", values.word())} for n in values.several(300)]
        kind = values.device_type()
        shares = {"gpu": ("gpu-core", "gpu-memory-ratio"), "rdma": ("rdma",), "fpga": ("fpga",)}.get(kind, ())
        return {
            "type": kind,
            "id": values.word(),
            "minor": values.one(number, number, number, number, number, number, number, -1, 2**31 - 1),
            "health": values.likely(0.8),
            "labels": {values.key(): values.one("a", "b")},
            "resources": {**{f"koordinator.sh/{name}": "100" for name in shares}, **values.amounts()},
            "topology": {
                "socketID": -1,
                "nodeID": values.one(-1, 0, 0, 1, 1, 1, 70 if values.likely(0.02) else 0),
                "pcieID": values.one("pci0000:00", "pci0000:80", f"pci{number}", ""),
            },
            "vfGroups": [{"labels": {values.key(): "a"}, "vfs": functions}],
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
