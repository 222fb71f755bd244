"""Devices, classes of them, and claims on them."""

from typing import Final

from tests.chaos.hostile.values import Values
from tests.e2e.world import JsonObject

DEVICES: Final = "resource.k8s.io/v1"
EXPRESSIONS: Final = (
    "true",
    "false",
    "device.driver == 'gpu.example.com'",
    "device.attributes['gpu.example.com'].model.matches('(a+)+$')",
    "'" + "a" * 60 + "b'.matches('(a+)+$')",
    "[1,2,3].all(x, [1,2,3].all(y, [1,2,3].all(z, x + y + z > 0)))",
    "device.capacity['gpu.example.com'].memory.compareTo(quantity('9223372036854775807')) > 0",
    "(" * 60 + "true" + ")" * 60,
    "!" * 100 + "true",
    "9223372036854775807 + 1 > 0",
    "1 / 0 == 1",
    " || ".join(["device.driver == 'x'"] * 200),
    "size('" + "x" * 5000 + "') > 0",
)


class Devices:
    """ResourceSlices, DeviceClasses and ResourceClaims."""

    def __init__(self, values: Values) -> None:
        self._values = values

    def resource_slice(self, name: str) -> JsonObject:
        """Devices of a node, or of many."""
        values = self._values
        where: JsonObject = values.one(
            {"nodeName": values.node()}, {"allNodes": True}, {"nodeSelector": self._one_term()}
        )
        return {
            "apiVersion": DEVICES,
            "kind": "ResourceSlice",
            "metadata": values.metadata(name),
            "spec": {
                "driver": "gpu.example.com",
                "pool": {
                    "name": values.node(),
                    "generation": values.one(0, 1, 2**63 - 1),
                    "resourceSliceCount": values.one(1, 2, 2**63 - 1),
                },
                "devices": [self._device(number) for number in values.several(128)],
                **where,
            },
        }

    def device_class(self, _: str) -> JsonObject:
        """A DeviceClass with hostile values."""
        values = self._values
        spec = {"selectors": self._selectors(), "config": self._config("opaque")}
        metadata = values.metadata(self._class())
        return {"apiVersion": DEVICES, "kind": "DeviceClass", "metadata": metadata, "spec": spec}

    def claim(self, _: str) -> JsonObject:
        """A ResourceClaim by one of a few names, which pods use."""
        values = self._values
        metadata = values.metadata(f"hostile-{values.dice.randrange(9)}", namespace="default")
        devices = {
            "requests": [self._request(number) for number in values.several(32)] or [self._request(0)],
            "constraints": [
                {"matchAttribute": f"gpu.example.com/{values.one('model', 'serial')}"} for _ in values.several(32)
            ],
            "config": self._config("opaque"),
        }
        return {"apiVersion": DEVICES, "kind": "ResourceClaim", "metadata": metadata, "spec": {"devices": devices}}

    def _request(self, number: int) -> JsonObject:
        values = self._values
        demand: JsonObject = {"deviceClassName": self._class(), "selectors": self._selectors()}
        if values.likely(0.2):
            demand |= {"allocationMode": "All"}
        elif values.likely(0.5):
            demand |= {"allocationMode": "ExactCount", "count": values.one(1, 2, 32, 2**63 - 1)}
        if values.likely(0.2):
            demand["capacity"] = {"requests": {"memory": values.quantity()}}
        if values.likely(0.3):
            alternatives = [{"name": f"s{each}", **demand} for each in range(1 + values.many(7))]
            return {"name": f"r{number}", "firstAvailable": alternatives}
        return {"name": f"r{number}", "exactly": demand}

    def _selectors(self) -> list[JsonObject]:
        values = self._values
        return [{"cel": {"expression": values.one(*EXPRESSIONS)}} for _ in values.several(32)]

    def _config(self, kind: str) -> list[JsonObject]:
        values = self._values
        depth = values.one(1, 10, 150, 201, 235)
        one = {kind: {"driver": "gpu.example.com", "parameters": values.deep(depth)}}
        return [one] * min(32, values.many(32))

    def _device(self, number: int) -> JsonObject:
        values = self._values
        return {
            "name": f"d{number}",
            "attributes": {
                "model": {"string": "a" * 60},
                "serial": values.one({"int": values.integer()}, {"version": "1.0.0"}, {"bool": True}),
            },
            "capacity": {"memory": {"value": values.quantity()}},
        }

    def _one_term(self) -> JsonObject:
        return {"nodeSelectorTerms": [{"matchExpressions": self._values.requirements()}]}

    def _class(self) -> str:
        return str(self._values.one("hostile-a", "hostile-b", "absent"))
