"""``koord-numa/pci-devices``: the NUMA node of a PCIe root, where its devices agree; whatever is malformed tells nothing."""

import json

from koord_numa.wire.errors import FieldPath
from koord_numa.wire.topologies import numa_by_root
from tests.tables import each_row

NAME = "koord-numa/pci-devices"
DEVICES = [
    {"address": "0000:17:00.0", "class": "0302", "node": 0, "root": "pci0000:16"},
    {"address": "0000:18:00.0", "class": "0200", "node": 0, "root": "pci0000:16"},
    {"address": "0000:97:00.0", "class": "0302", "node": 1, "root": "pci0000:96"},
    {"address": "0000:d7:00.0", "class": "0302", "root": "pci0000:d6"},
    {"address": "0000:e7:00.0", "class": "0302", "node": 0, "root": "pci0000:e6"},
    {"address": "0000:e8:00.0", "class": "0302", "node": 1, "root": "pci0000:e6"},
]


def test_roots_whose_devices_agree() -> None:
    assert numa_by_root({NAME: json.dumps(DEVICES)}, FieldPath("x")) == {"pci0000:16": 0, "pci0000:96": 1}


@each_row(
    "text",
    ["", "{", "{}", "null", "[1]", '[{"node": "a"}]', '[{"node": -1, "root": "r"}]', '[{"node": 5000, "root": "r"}]'],
)
def test_what_is_malformed_tells_nothing(text: str) -> None:
    assert numa_by_root({NAME: text}, FieldPath("x")) == {}
    assert numa_by_root({}, FieldPath("x")) == {}
