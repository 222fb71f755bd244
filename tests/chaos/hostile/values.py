"""Extreme numbers, long lists, deep JSON and large texts, within a budget an object, so that they stay acceptable to an API server."""

import json
from random import Random
from typing import Any, Final

from koord_numa.wire import names
from tests.e2e.world import JsonObject

QUANTITIES: Final = (
    "1Ei", "8Ei", "9223372036854775807", "9223372036854775808", "1e30", "1m", "0", "1n", "0.0000001", "100Gi", "1000000", "4", "-1",
)  # fmt: skip
GOOD: Final = tuple(each for each in QUANTITIES if each != "-1")
RESOURCES: Final = (
    "cpu", "memory", "ephemeral-storage", "hugepages-2Mi", "hugepages-1Gi", "nvidia.com/gpu", "example.com/thing", "pods",
    "kubernetes.io/batch-cpu", "example.com/" + "x" * 60, "koordinator.sh/gpu", "koordinator.sh/gpu-memory", "koordinator.sh/gpu-core",
    "koordinator.sh/gpu-memory-ratio", "koordinator.sh/gpu.shared", "koordinator.sh/rdma", "koordinator.sh/fpga",
)  # fmt: skip
INTEGERS: Final = (0, -1, 1, 2**31 - 1, -(2**31), 2**63 - 1, -(2**63), 100)
WORDS: Final = (
    "", "LSR", "LSE", "lsr", "Restricted", "SingleNUMANode", "x" * 200, "0-4095", "-1", "NaN", "☃", "true", "null",
)  # fmt: skip
KEYS: Final = ("app", "zone", "kubernetes.io/hostname", "topology.kubernetes.io/zone", "example.com/" + "k" * 60)
OPERATORS: Final = ("In", "NotIn", "Exists", "DoesNotExist")
EFFECTS: Final = ("NoSchedule", "NoExecute", "PreferNoSchedule")
KNOWN_ANNOTATIONS: Final = (
    names.RESOURCE_SPEC, names.RESOURCE_STATUS, names.CPU_TOPOLOGY, "node.koordinator.sh/pod-cpu-allocs",
    "scheduling.koordinator.sh/numa-topology-spec", "node.koordinator.sh/cpu-shared-pools", "node.koordinator.sh/reservation",
    "node.koordinator.sh/resource-amplification-ratio", "kubelet.koordinator.sh/cpu-manager-policy",
    "volume.kubernetes.io/selected-node", "volume.beta.kubernetes.io/storage-class", "pv.kubernetes.io/bind-completed",
    "pv.kubernetes.io/bound-by-controller", "scheduling.koordinator.sh/rebind", names.DEVICE_ALLOCATED, names.DEVICE_ALLOCATE_HINT,
    names.DEVICE_JOINT_ALLOCATE, names.GPU_PARTITION_SPEC, names.GPU_PARTITIONS, names.HELD_DEVICES,
)  # fmt: skip
BUDGETS: Final = (100, 100, 100, 1000, 1000, 10_000)
"""Entries of all lists of one object together."""


class Values:
    """Dice with hostile faces. ``nodes`` are names of nodes that may be made, bound to and published about."""

    def __init__(self, dice: Random) -> None:
        self.dice = dice
        self.nodes = [f"hostile-{number}" for number in range(5)]
        self._left = 0

    def begin(self) -> None:
        """Another object: a new budget."""
        self._left = self.dice.choice(BUDGETS)

    def many(self, most: int) -> int:
        """Draw the length of a list."""
        count = min(self._left, self.dice.choice((0, 1, 1, 2, 3, self.dice.randint(0, most))))
        self._left -= count
        return count

    def several(self, most: int) -> range:
        """As many turns as the list is to be long."""
        return range(self.many(most))

    def one(self, *choices: Any) -> Any:
        """One of these."""
        return self.dice.choice(choices)

    def likely(self, share: float) -> bool:
        """True in this share of cases."""
        return self.dice.random() < share

    def word(self) -> str:
        """A text in which a word is expected."""
        return str(self.dice.choice(WORDS))

    def key(self) -> str:
        """A label's key."""
        return self.dice.choice(KEYS)

    def integer(self) -> int:
        """A number."""
        return self.dice.choice(INTEGERS)

    def node(self) -> str:
        """A node's name."""
        return self.dice.choice(self.nodes)

    def quantity(self) -> str:
        """An amount that is not negative: the API server refuses others."""
        return str(self.dice.choice(GOOD))

    def amounts(self) -> dict[str, str]:
        """A resource list."""
        return {self.dice.choice(RESOURCES): self.quantity() for _ in self.several(8)}

    def deep(self, levels: int) -> Any:
        """So many objects, each in another."""
        value: Any = {}
        for _ in range(levels):
            value = {"a": value}
        return value

    def text(self) -> str:
        """Return the text of an annotation."""
        depth = self.one(1, 10, 300, 5000)
        makers = [
            self._brackets, self._long, self._status, self._policies, self._cpu_topology, self._allocations, self._grants,
            self._device_hints, self._joint, self._partitions, self._held_devices,
        ]  # fmt: skip
        return self.dice.choice(makers)(depth)

    def _brackets(self, depth: int) -> str:
        opening, closing = self.dice.choice((('{"a":', "}"), ("[", "]")))
        return opening * depth + "1" + closing * depth

    def _long(self, depth: int) -> str:
        return "x" * (20 * depth)

    def _status(self, _: int) -> str:
        cpus = ",".join(map(str, range(0, 4096, 2))) if self.likely(0.3) else self.word()
        parts = [{"node": self.integer(), "resources": self.amounts()} for _ in self.several(64)]
        return json.dumps({"cpuset": cpus, "numaNodeResources": parts})

    def _policies(self, _: int) -> str:
        keys = (
            "requiredCPUBindPolicy", "preferredCPUBindPolicy", "preferredCPUExclusivePolicy", "numaTopologyPolicy",
            "singleNUMANodeExclusive",
        )  # fmt: skip
        return json.dumps({key: self.word() for key in keys})

    def _cpu_topology(self, _: int) -> str:
        detail = [{"id": n, "core": 0, "socket": self.integer(), "node": self.integer()} for n in self.several(500)]
        return json.dumps({"detail": detail})

    def _allocations(self, _: int) -> str:
        one = {"cpuset": self.word(), "managedByKubelet": True, "name": "a", "namespace": "b", "uid": "c"}
        return json.dumps([one] * self.many(100))

    def _grants(self, _: int) -> str:
        return json.dumps(self._granted())

    def _granted(self) -> JsonObject:
        return {
            self.device_type(): [
                {
                    "minor": self.one(0, 1, 2, self.integer()),
                    "resources": self.amounts(),
                    "extension": {"vfs": [{"minor": 0, "busID": self.word()} for _ in self.several(8)]},
                }
                for _ in self.several(300)
            ]
            for _ in range(3)
        }

    def _device_hints(self, _: int) -> str:
        hints = {
            self.device_type(): {
                "selector": {"matchLabels": {self.key(): "a"}},
                "vfSelector": self.one({}, {"matchExpressions": self.requirements()}),
                "allocateStrategy": self.one("ApplyForAll", "RequestsAsCount", "", self.word()),
                "requiredTopologyScope": self.one("Device", "PCIe", "NUMANode", "Node", self.word()),
                "exclusivePolicy": self.one("DeviceLevel", "PCIeLevel", "", self.word()),
            }
            for _ in range(2)
        }
        kept = {kind: {key: value for key, value in hint.items() if self.likely(0.4)} for kind, hint in hints.items()}
        return json.dumps(kept)

    def _joint(self, _: int) -> str:
        joint = {"deviceTypes": [self.device_type() for _ in self.several(4)], "requiredScope": "SamePCIe"}
        spec = {"allocatePolicy": self.one("Restricted", "BestEffort"), "ringBusBandwidth": self.quantity()}
        return json.dumps(self.one(joint, spec))

    def _partitions(self, _: int) -> str:
        sizes = self.one(("1", "2"), ("2", "4", "8"), ("-1", "99", "x"))
        table = {
            size: [
                {"minors": [first, first + 1][: int(size) if size == "1" else 2], "allocationScore": self.integer()}
                for first in self.several(300)
            ]
            for size in sizes
        }
        return json.dumps(table)

    def _held_devices(self, _: int) -> str:
        return json.dumps({self.one("default/first", f"a/{n}", "☃" * 100): self._granted() for n in self.several(300)})

    def device_type(self) -> str:
        """The type of a device by id."""
        return str(self.one("gpu", "gpu", "rdma", "fpga", "xpu", ""))

    def annotations(self) -> dict[str, str]:
        """Known keys with unknown meanings."""
        return {self.dice.choice(KNOWN_ANNOTATIONS): self.text() for _ in range(self.one(0, 0, 1, 2, 4))}

    def labels(self) -> dict[str, str]:
        """A few, or five hundred."""
        found = {self.key(): self.one("a", "b", "") for _ in self.several(4)}
        found |= {f"l{number}": str(number) for number in range(self.one(0, 0, 0, 0, 0, 500))}
        if self.likely(0.5):
            found["koordinator.sh/qosClass"] = self.one("LSR", "LSE", "LS", "BE", "LSRX")
        return found

    def metadata(self, name: str, **more: Any) -> JsonObject:
        """Of an object by this name."""
        return {"name": name, "labels": self.labels(), "annotations": self.annotations(), **more}

    def requirements(self) -> list[JsonObject]:
        """``matchExpressions``."""
        return [self._requirement() for _ in self.several(20)]

    def _requirement(self) -> JsonObject:
        operator = self.dice.choice(OPERATORS)
        wanted = {"key": self.key(), "operator": operator}
        return wanted if operator in ("Exists", "DoesNotExist") else wanted | {"values": ["a"] * (1 + self.many(200))}

    def node_selector(self) -> JsonObject:
        """``nodeSelectorTerms``."""
        return {"nodeSelectorTerms": [{"matchExpressions": self.requirements()} for _ in range(1 + self.many(50))]}
