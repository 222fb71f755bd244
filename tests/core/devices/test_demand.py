"""Device requests in every spelling become one normal form; invalid requests are rejected in Koordinator's words."""

from koord_numa.core.devices import DeviceDemand, device_demand
from koord_numa.core.objects.devices import AllocateStrategy, DeviceExclusive, DeviceHint, DeviceSpec, TopologyScope
from koord_numa.core.objects.request import PodRequest
from tests.core.devices.rack import GIB, request
from tests.tables import each_row

ALL = AllocateStrategy.APPLY_FOR_ALL
COUNT = AllocateStrategy.REQUESTS_AS_COUNT


def shown(pod: PodRequest) -> str:
    """The normal form as text: ``2 gpu of gpu-core 100, gpu-memory-ratio 100``; ``part of`` if others may share the device."""
    demand = device_demand(pod)
    if not isinstance(demand, DeviceDemand):
        return demand or ""
    return "; ".join(
        f"{each.count or 'all'} {each.type} {'part ' if each.partial else ''}of "
        + ", ".join(f"{name.rpartition('/')[2]} {amount}" for name, amount in each.amounts)
        for each in demand.types
    )


WHOLE = "gpu of gpu-core 100, gpu-memory-ratio 100"


@each_row(
    ("amounts", "expected"),
    [
        ({"cpu": 1000}, ""),
        ({"nvidia.com/gpu": 1}, f"1 {WHOLE}"),
        ({"nvidia.com/gpu": 8}, f"8 {WHOLE}"),
        ({"amd.com/gpu": 2}, f"2 {WHOLE}"),
        ({"dcu.com/gpu": 4}, f"4 {WHOLE}"),
        ({"gpu": 100}, f"1 {WHOLE}"),
        ({"gpu": 200}, f"2 {WHOLE}"),
        ({"gpu": 50}, "1 gpu part of gpu-core 50, gpu-memory-ratio 50"),
        ({"gpu": 1}, "1 gpu part of gpu-core 1, gpu-memory-ratio 1"),
        ({"gpu-memory-ratio": 50}, "1 gpu part of gpu-memory-ratio 50"),
        ({"gpu-memory-ratio": 100}, "1 gpu of gpu-memory-ratio 100"),
        ({"gpu-memory-ratio": 300}, "3 gpu of gpu-memory-ratio 100"),
        ({"gpu-memory": 8 * GIB}, f"1 gpu part of gpu-memory {8 * GIB}"),
        ({"gpu-core": 50, "gpu-memory": 8 * GIB}, f"1 gpu part of gpu-core 50, gpu-memory {8 * GIB}"),
        ({"gpu-core": 100, "gpu-memory": 80 * GIB}, f"1 gpu part of gpu-core 100, gpu-memory {80 * GIB}"),
        ({"gpu-core": 30, "gpu-memory-ratio": 60}, "1 gpu part of gpu-core 30, gpu-memory-ratio 60"),
        ({"gpu-core": 200, "gpu-memory-ratio": 200}, f"2 {WHOLE}"),
        ({"gpu-core": 100, "gpu-memory-ratio": 200}, "2 gpu of gpu-core 50, gpu-memory-ratio 100"),
        ({"gpu-core": 100, "gpu-memory-ratio": 300}, "3 gpu of gpu-core 34, gpu-memory-ratio 100"),
        ({"gpu.shared": 1, "gpu-memory-ratio": 50}, "1 gpu part of gpu-memory-ratio 50"),
        ({"gpu.shared": 2, "gpu-memory-ratio": 100}, "2 gpu part of gpu-memory-ratio 50"),
        ({"gpu.shared": 2, "gpu-memory-ratio": 200}, "2 gpu of gpu-memory-ratio 100"),
        ({"gpu.shared": 2, "gpu-memory": 16 * GIB}, f"2 gpu part of gpu-memory {8 * GIB}"),
        ({"gpu.shared": 2, "gpu-memory": 3}, "2 gpu part of gpu-memory 2"),
        ({"gpu.shared": 2, "gpu-core": 60, "gpu-memory-ratio": 100}, "2 gpu part of gpu-core 30, gpu-memory-ratio 50"),
        ({"gpu.shared": 4, "gpu-core": 400, "gpu-memory": 4 * GIB}, f"4 gpu part of gpu-core 100, gpu-memory {GIB}"),
        ({"huawei.com/npu-core": 200, "gpu-memory-ratio": 200}, "2 gpu of npu-core 100, gpu-memory-ratio 100"),
        ({"rdma": 1}, "1 rdma part of rdma 1"),
        ({"rdma": 100}, "1 rdma of rdma 100"),
        ({"rdma": 200}, "2 rdma of rdma 100"),
        ({"fpga": 50}, "1 fpga part of fpga 50"),
        ({"fpga": 300}, "3 fpga of fpga 100"),
        ({"gpu": 200, "rdma": 200}, f"2 {WHOLE}; 2 rdma of rdma 100"),
        ({"nvidia.com/gpu": 1, "rdma": 1, "fpga": 100}, f"1 {WHOLE}; 1 rdma part of rdma 1; 1 fpga of fpga 100"),
    ],
    ids=lambda value: " ".join(map(str, value.items())) if isinstance(value, dict) else "",
)
def test_normal_form(amounts: dict[str, int], expected: str) -> None:
    """Each spelling of a request."""
    assert shown(request(amounts)) == expected


@each_row(
    ("amounts", "hint", "expected"),
    [
        ({"rdma": 3}, DeviceHint(strategy=COUNT), "3 rdma part of rdma 1"),
        ({"rdma": 3}, DeviceHint(strategy=COUNT, exclusive=DeviceExclusive.DEVICE), "3 rdma of rdma 100"),
        ({"rdma": 3}, DeviceHint(strategy=COUNT, exclusive=DeviceExclusive.PCIE), "3 rdma part of rdma 1"),
        ({"rdma": 1}, DeviceHint(strategy=ALL), "all rdma part of rdma 1"),
        ({"rdma": 100}, DeviceHint(strategy=ALL), "all rdma of rdma 100"),
        # More than 100 is a number of devices, whatever the strategy.
        ({"rdma": 200}, DeviceHint(strategy=ALL), "2 rdma of rdma 100"),
        ({"rdma": 200}, DeviceHint(strategy=COUNT), "2 rdma of rdma 100"),
        ({"rdma": 50}, DeviceHint(exclusive=DeviceExclusive.DEVICE), "1 rdma part of rdma 50"),
        ({"fpga": 2}, DeviceHint(strategy=COUNT), "2 fpga part of fpga 1"),
        ({"gpu": 100}, DeviceHint(strategy=ALL), "all gpu of gpu-core 100, gpu-memory-ratio 100"),
        ({"gpu": 200}, DeviceHint(strategy=ALL), "2 gpu of gpu-core 100, gpu-memory-ratio 100"),
        # The request for a GPU says by itself how many there are.
        ({"gpu": 200}, DeviceHint(strategy=COUNT), "2 gpu of gpu-core 100, gpu-memory-ratio 100"),
    ],
)
def test_strategies(amounts: dict[str, int], hint: DeviceHint, expected: str) -> None:
    """The strategy of a hint says what an amount of at most 100 means."""
    kind = next(iter(amounts))
    assert shown(request(amounts, DeviceSpec(hints=((kind, hint),)))) == expected


UNIT = "a percentage above 100 must be a multiple of 100"
TOGETHER = "these resources cannot be combined"


@each_row(
    ("amounts", "expected"),
    [
        ({"gpu": 150}, f"invalid resource unit koordinator.sh/gpu: 150: {UNIT}"),
        ({"rdma": 101}, f"invalid resource unit koordinator.sh/rdma: 101: {UNIT}"),
        ({"fpga": 250}, f"invalid resource unit koordinator.sh/fpga: 250: {UNIT}"),
        ({"gpu-memory-ratio": 150}, f"[koordinator.sh/gpu-memory-ratio: 150]: {UNIT}"),
        ({"gpu-core": 150, "gpu-memory-ratio": 100}, f"gpu-memory-ratio: 100]: {UNIT}"),
        ({"gpu-core": 50}, f"[koordinator.sh/gpu-core: 50]: {TOGETHER}"),
        ({"gpu.shared": 1}, f"[koordinator.sh/gpu.shared: 1]: {TOGETHER}"),
        ({"gpu.shared": 1, "gpu-core": 50}, TOGETHER),
        ({"gpu": 100, "nvidia.com/gpu": 1}, TOGETHER),
        ({"nvidia.com/gpu": 1, "amd.com/gpu": 1}, TOGETHER),
        ({"gpu-memory": GIB, "gpu-memory-ratio": 50}, TOGETHER),
        ({"huawei.com/npu-core": 100}, TOGETHER),
        ({"gpu.shared": 2, "gpu-memory-ratio": 75}, "at most 100 % of each device, the same on each"),
        ({"gpu.shared": 2, "gpu-memory-ratio": 202}, "at most 100 % of each device, the same on each"),
        ({"gpu.shared": 2, "gpu-core": 50, "gpu-memory": 3}, ""),
        ({"gpu.shared": 2, "gpu-core": 51, "gpu-memory": GIB}, "at most 100 % of each device, the same on each"),
        (
            {"gpu.shared": 1, "huawei.com/npu-core": 8, "huawei.com/npu-cpu": 2, "gpu-memory": GIB},
            "no matched GPU shared resource template: koord-numa does not support templates of shared NPUs",
        ),
        (
            {"gpu.shared": 2, "huawei.com/npu-core": 8, "huawei.com/npu-cpu": 2, "gpu-memory": GIB},
            "at most 100 % of each device, the same on each",
        ),
    ],
    ids=lambda value: " ".join(map(str, value.items())) if isinstance(value, dict) else "",
)
def test_invalid_requests(amounts: dict[str, int], expected: str) -> None:
    """Koordinator's words first, then the rule."""
    found = device_demand(request(amounts))
    if not expected:
        assert isinstance(found, DeviceDemand)
        return
    assert isinstance(found, str)
    assert found.endswith(expected)
    assert found.startswith(("invalid resource unit ", "invalid resource device requests: ", "no matched GPU"))


@each_row(
    ("spec", "joint"),
    [
        (DeviceSpec(joint=("gpu", "rdma")), ("gpu", "rdma")),
        (DeviceSpec(joint=("rdma", "gpu")), ("rdma", "gpu")),
        # Types that are not requested, or taken completely, are not allocated jointly.
        (DeviceSpec(joint=("gpu", "fpga")), ()),
        (DeviceSpec(joint=("gpu", "rdma", "fpga")), ("gpu", "rdma")),
        (DeviceSpec(hints=(("rdma", DeviceHint(strategy=ALL)),), joint=("gpu", "rdma")), ()),
        (DeviceSpec(joint=("gpu",)), ()),
        (DeviceSpec(), ()),
    ],
)
def test_joint_types(spec: DeviceSpec, joint: tuple[str, ...]) -> None:
    """Only requested types, at least two of them."""
    found = device_demand(request({"gpu": 100, "rdma": 1}, spec))
    assert isinstance(found, DeviceDemand)
    assert found.joint == joint


@each_row(
    ("spec", "matters"),
    [
        (DeviceSpec(), False),
        (DeviceSpec(hints=(("gpu", DeviceHint(strategy=COUNT)),)), False),
        (DeviceSpec(hints=(("gpu", DeviceHint(scope=TopologyScope.PCIE)),)), True),
        (DeviceSpec(hints=(("gpu", DeviceHint(exclusive=DeviceExclusive.DEVICE)),)), True),
        (DeviceSpec(hints=(("fpga", DeviceHint(scope=TopologyScope.PCIE)),)), False),
        (DeviceSpec(joint=("gpu", "rdma")), True),
    ],
)
def test_conditions_need_a_device_object(spec: DeviceSpec, *, matters: bool) -> None:
    """Conditions that plain amounts of a node cannot satisfy."""
    found = device_demand(request({"gpu": 100, "rdma": 1}, spec))
    assert isinstance(found, DeviceDemand)
    assert found.spec_matters is matters
