"""Possible sources of devices, and the devices that are taken."""

import pytest

from koord_numa.core.kubelet.admit import DeviceStock
from koord_numa.core.kubelet.demand import UNEXPECTED_ADMISSION, AdmitRejection
from koord_numa.core.kubelet.state import DevicePool
from tests.core.kubelet.nodes import gpus
from tests.tables import each_row

WISHES: dict[str, tuple[DeviceStock, int, list[tuple[int, bool]]]] = {
    "each NUMA node has one": (DeviceStock("gpu", gpus(1, 2)), 1, [(1, True), (2, True), (3, False)]),
    "two need both": (DeviceStock("gpu", gpus(1, 2)), 2, [(3, True)]),
    "taken ones still lower the preferred size": (DeviceStock("gpu", gpus(1, 1, 2), taken=0b001), 2, [(3, False)]),
    "unhealthy ones, too": (DeviceStock("gpu", gpus(1, 1, 2, unhealthy=(1,))), 2, [(3, False)]),
    "near both counts for both, once": (DeviceStock("gpu", gpus(3, 1)), 2, [(1, True), (3, False)]),
    "NUMA nodes without any are no part of a mask": (DeviceStock("gpu", gpus(4)), 1, [(4, True)]),
    "naming none still asks for a NUMA node that has some": (DeviceStock("gpu", gpus(2, 2)), 0, [(2, True)]),
    "more than free": (DeviceStock("gpu", gpus(1, 2), taken=0b01), 2, []),
    "one without topology helps no mask": (DeviceStock("gpu", gpus(1, None)), 2, []),
    "reusable ones must be inside": (
        DeviceStock("gpu", gpus(1, 2), taken=0b01, reusable=0b01),
        1,
        [(1, True), (3, False)],
    ),
}


@each_row(("stock", "needed", "hints"), WISHES.values(), ids=WISHES)
def test_hints(stock: DeviceStock, needed: int, hints: list[tuple[int, bool]]) -> None:
    wish = stock.hints(needed)
    assert wish is not None
    assert [hint[:2] for hint in wish.hints()] == hints
    assert list(wish.preferred()) == [mask for mask, preferred in hints if preferred]


def test_without_any_topology_there_is_no_hint() -> None:
    assert DeviceStock("gpu", gpus(None, None)).hints(1) is None


TAKES: dict[str, tuple[DeviceStock, int, int | None, int]] = {
    "near the mask": (DeviceStock("gpu", gpus(1, 2)), 1, 0b10, 0b10),
    "anywhere": (DeviceStock("gpu", gpus(1, 2)), 1, None, 0b01),
    "near the mask first, then the rest": (DeviceStock("gpu", gpus(1, 2, 2)), 3, 0b10, 0b111),
    "reusable first": (DeviceStock("gpu", gpus(1, 1), taken=0b10, reusable=0b10), 1, 0b1, 0b10),
    "without topology last": (DeviceStock("gpu", gpus(None, 1)), 1, 0b1, 0b10),
    "none": (DeviceStock("gpu", gpus(1)), 0, 0b1, 0),
}


@each_row(("stock", "needed", "mask", "taken"), TAKES.values(), ids=TAKES)
def test_takes(stock: DeviceStock, needed: int, mask: int | None, taken: int) -> None:
    assert stock.take(needed, mask) == taken


@pytest.mark.parametrize(
    ("pool", "needed", "detail"),
    [(gpus(1, unhealthy=(0,)), 0, "no healthy gpu"), (gpus(1), 2, "gpu: needed 2, free 1")],
    ids=["all unhealthy, even for none", "too few"],
)
def test_refusals(pool: DevicePool, needed: int, detail: str) -> None:
    assert DeviceStock("gpu", pool).take(needed, None) == AdmitRejection(UNEXPECTED_ADMISSION, detail)
