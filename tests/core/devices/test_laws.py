"""Laws of device allocation: nothing is allocated twice, and an allocation exists exactly if trying every set of devices finds one."""

from collections.abc import Iterator
from itertools import chain, combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from koord_numa.core.devices import (
    Chosen,
    DeviceDemand,
    NodeDeviceHints,
    Shortage,
    TypeDemand,
    device_demand,
    node_devices,
)
from koord_numa.core.devices.machine import UNUSED, device_machine, device_use, double_holds, free_value
from koord_numa.core.objects.constraints import LabelSelector, Operator, Requirement, selects
from koord_numa.core.objects.devices import (
    AllocateStrategy,
    DeviceExclusive,
    DeviceHint,
    DeviceInventory,
    DeviceSpec,
    NodeDevice,
    Partition,
    PartitionPolicy,
    PartitionSpec,
    TopologyScope,
)
from koord_numa.core.objects.request import PodKey, PodRequest
from koord_numa.core.state.ledger import Holding, Ledger
from tests.core.devices.rack import inventory, provider, request

EVEN = LabelSelector((Requirement("model", Operator.IN, ("even",)),))
FAST = LabelSelector((Requirement("group", Operator.IN, ("fast",)),))
PLACES = ("0a", "0a", "0b", "1c", "1c", "-a", "?", "0", "1c!")

words = st.lists(st.sampled_from(PLACES), max_size=4).map(" ".join)
hints = st.builds(
    DeviceHint,
    selector=st.sampled_from((None, None, EVEN)),
    strategy=st.sampled_from(AllocateStrategy),
    scope=st.sampled_from((None, None, *TopologyScope)),
    exclusive=st.sampled_from((DeviceExclusive.NONE, *DeviceExclusive)),
)
nic_hints = st.builds(
    lambda hint, functions: DeviceHint(hint.selector, functions, hint.strategy, hint.scope, hint.exclusive),
    hints,
    st.sampled_from((None, None, FAST)),
)
partitions = st.sampled_from((None, None, PartitionSpec(), PartitionSpec(PartitionPolicy.RESTRICTED, 10)))
specs = st.builds(
    lambda gpu, nic, joint, same, partition: DeviceSpec((("gpu", gpu), ("rdma", nic)), joint, same, partition),
    hints,
    nic_hints,
    st.sampled_from(((), ("gpu", "rdma"), ("rdma", "gpu"))),
    st.booleans(),
    partitions,
)
amounts = st.fixed_dictionaries(
    {}, optional={"gpu": st.sampled_from((30, 60, 100, 200, 300)), "rdma": st.sampled_from((1, 2, 60, 100, 200))}
).filter(bool)
requests = st.builds(request, amounts, specs)
tables = st.sampled_from(
    (
        None,
        (
            (1, (Partition((0,)), Partition((1,)))),
            (2, (Partition((0, 2), 2, 20), Partition((0, 1), 1, 5), Partition((1, 3), 2))),
        ),
    )
)
machines = st.builds(lambda gpus, nics, table: inventory(gpus, nics, partitions=table), words, words, tables)


def filled(there: DeviceInventory, pods: list[PodRequest]) -> tuple[Ledger, list[Holding]]:
    """The pods that fit, one after the other."""
    ledger, held = Ledger(), []
    for number, pod in enumerate(pods):
        hints = with_ledger(pod, there, ledger)
        found = hints.at(0)
        if not isinstance(found, Shortage):
            grants = hints.grants(found)
            held.append(Holding(PodKey("d", f"p{number}", f"u{number}"), {}, request=pod, devices=grants))
            ledger.hold(held[-1])
    return ledger, held


def with_ledger(pod: PodRequest, there: DeviceInventory, ledger: Ledger) -> NodeDeviceHints:
    """The hint provider beside a ledger."""
    found = node_devices(pod, provider(pod, there).offer, ledger)
    assert isinstance(found, NodeDeviceHints)
    return found


@given(machines, st.lists(requests, min_size=1, max_size=8))
def test_nothing_is_allocated_twice(there: DeviceInventory, pods: list[PodRequest]) -> None:
    """No device has more than its amounts allocated, no virtual function two pods, and exclusive holders share nothing."""
    ledger, held = filled(there, pods)
    machine = provider(pods[0], there).offer.machine
    assert double_holds(ledger, machine) == ""
    functions = [(grant.key, one.bus_id) for each in held for grant in each.devices for one in grant.functions]
    assert len(functions) == len(set(functions))
    for each in held:
        for grant in each.devices:
            exclusive = each.request.devices.hint(grant.type).exclusive if each.request else DeviceExclusive.NONE
            if exclusive is DeviceExclusive.DEVICE:
                others = [other for other in held if other is not each]
                assert not [one for other in others for one in other.devices if one.key == grant.key]
    # A ledger that is built anew from what was written has the same free devices.
    for position, each in enumerate(held):
        assert device_use(ledger, machine) is device_use(Ledger.of(held[position:]), machine)
        ledger.release(each.pod.uid)
    assert ledger == Ledger()
    assert device_use(ledger, machine) is UNUSED


@given(machines, st.lists(requests, max_size=4), requests, st.sampled_from((0, 0b01, 0b10, 0b11)))
def test_allocation_exists_exactly_if_brute_force_finds_one(
    there: DeviceInventory, pods: list[PodRequest], pod: PodRequest, numa: int
) -> None:
    """At most four GPUs and four NICs: every set of devices is tried."""
    ledger, _ = filled(there, pods)
    found = with_ledger(pod, there, ledger).at(numa)
    possible = BruteForce(there, ledger, pod, numa).possible()
    assert isinstance(found, Shortage) is not possible


@pytest.mark.parametrize(
    ("model", "sizes"), [pytest.param("H100", (1, 2, 4), id="table"), pytest.param("", (1,), id="topology")]
)
def test_whole_partitions_are_spared(model: str, sizes: tuple[int, ...]) -> None:
    """For each set of free GPUs, the chosen ones leave the highest value of free groups that any partition leaves."""
    there = inventory(nics="", model=model)
    machine = device_machine(there)
    for used in range(256):
        taken = " ".join(f"gpu{minor}" for minor in range(8) if used >> minor & 1)
        for size in sizes:
            hints = provider(request({"gpu": 100 * size}), there, taken)
            partitions = dict(machine.partitions or ()).get(size, tuple(Partition((minor,)) for minor in range(8)))
            possible = [machine.positions("gpu", it.minors) for it in partitions]
            left = [free_value(machine, used | bits) for bits in possible if not bits & used]
            if left:
                found = hints.at(0)
                assert isinstance(found, Chosen)
                assert free_value(machine, used | found.devices) == max(left), (used, size)


class BruteForce:
    """The rules of an allocation, said once more and without any order."""

    def __init__(self, there: DeviceInventory, ledger: Ledger, pod: PodRequest, numa: int) -> None:
        demand = device_demand(pod)
        assert isinstance(demand, DeviceDemand)
        self.there, self.ledger, self.demand, self.numa = there, ledger, demand, numa

    def possible(self) -> bool:
        """Return true if a choice of devices follows every rule."""
        kinds = [each.type for each in self.demand.types]
        choices: list[dict[str, tuple[NodeDevice, ...]]] = [{}]
        for kind in kinds:
            choices = [{**choice, kind: devices} for choice in choices for devices in self.sets(self.demand.of(kind))]
        return any(self.is_joint(choice) for choice in choices)

    def sets(self, wanted: TypeDemand) -> Iterator[tuple[NodeDevice, ...]]:
        matching = [it for it in self.there.devices if it.type == wanted.type and self.matches(wanted, it)]
        usable = [it for it in matching if self.is_usable(wanted, it)]
        if not wanted.count:
            if matching and len(usable) == len(matching) and self.is_shaped(wanted, tuple(matching)):
                yield tuple(matching)
            return
        # A joint type that is not the first one may need more devices than the pod asks for.
        sizes = (
            range(wanted.count, 5) if wanted.type in self.demand.joint[1:] else range(wanted.count, wanted.count + 1)
        )
        for devices in chain.from_iterable(combinations(usable, size) for size in sizes):
            if self.is_shaped(wanted, devices):
                yield devices

    def matches(self, wanted: TypeDemand, device: NodeDevice) -> bool:
        return wanted.hint.selector is None or selects(wanted.hint.selector, dict(device.labels))

    def is_usable(self, wanted: TypeDemand, device: NodeDevice) -> bool:
        topology = device.topology
        if not device.healthy or (self.numa and topology is None):
            return False
        if self.numa and topology is not None and topology.numa is not None and not self.numa >> topology.numa & 1:
            return False
        on_device = [
            (holding, grant) for holding in self.ledger for grant in holding.devices if grant.key == device.key
        ]
        near = [
            (holding, grant)
            for holding in self.ledger
            for grant in holding.devices
            if grant.type == device.type and self.switch(grant.key) == self.switch(device.key) is not None
        ]
        for name, amount in wanted.amounts:
            total = dict(device.resources).get(name, 0)
            if sum(grant.resources.get(name, 0) for _, grant in on_device) + amount > total:
                return False
        mine = wanted.hint.exclusive
        if mine is DeviceExclusive.DEVICE and on_device:
            return False
        if mine is DeviceExclusive.PCIE and (near or on_device):
            return False
        levels = {holding.request.devices.hint(device.type).exclusive for holding, _ in on_device if holding.request}
        if not levels <= {DeviceExclusive.NONE}:
            return False
        if any(h.request and h.request.devices.hint(device.type).exclusive is DeviceExclusive.PCIE for h, _ in near):
            return False
        selector = wanted.hint.function_selector
        taken = {one.bus_id for _, grant in on_device for one in grant.functions}
        free = [
            it for it in device.functions if it.bus_id not in taken and selector and selects(selector, dict(it.labels))
        ]
        return selector is None or bool(free)

    def switch(self, key: tuple[str, int]) -> tuple[int | None, str] | None:
        device = next((it for it in self.there.devices if it.key == key), None)
        topology = None if device is None else device.topology
        return None if topology is None or not topology.pcie else (topology.numa, topology.pcie)

    def is_shaped(self, wanted: TypeDemand, devices: tuple[NodeDevice, ...]) -> bool:
        scope = wanted.hint.scope
        of_type = [it for it in self.there.devices if it.type == wanted.type]
        whole_gpus = wanted.type == "gpu" and not wanted.partial
        spec = self.demand.partition
        if whole_gpus and spec is not None:
            listed = dict(self.there.partitions or ()).get(len(devices), ())
            best = max((it.score for it in listed), default=0)
            minors = tuple(it.minor for it in devices)
            fitting = [
                it
                for it in listed
                if it.minors == minors
                and (spec.policy is PartitionPolicy.BEST_EFFORT or it.score == best)
                and (spec.bandwidth is None or (it.bandwidth or 0) >= spec.bandwidth)
            ]
            if not fitting or any(grant.key in [it.key for it in devices] for h in self.ledger for grant in h.devices):
                return False
        elif scope is not None and wanted.type == "gpu":
            if wanted.partial and len(devices) > 1:
                return False
            if any(it.topology is None for it in of_type):
                return False
        if scope in (None, TopologyScope.NODE) or len(devices) == 1:
            return True
        if scope is TopologyScope.DEVICE:
            return False
        switches = {self.switch(it.key) for it in devices}
        if (len(switches) == 1 and None not in switches) or scope is TopologyScope.PCIE:
            return len(switches) == 1 and None not in switches
        numas = {None if it.topology is None else it.topology.numa for it in devices}
        return len(numas) == 1 and None not in numas

    def is_joint(self, choice: dict[str, tuple[NodeDevice, ...]]) -> bool:
        if not self.demand.joint:
            return True
        if not self.demand.same_pcie:
            return all(len(choice[kind]) == self.demand.of(kind).count for kind in self.demand.joint)
        primary, *others = ({self.switch(it.key) for it in choice[kind]} for kind in self.demand.joint)
        counts = [max(self.demand.of(kind).count, len(primary)) for kind in self.demand.joint[1:]]
        enough = all(len(choice[kind]) == count for kind, count in zip(self.demand.joint[1:], counts, strict=True))
        return None not in primary and enough and all(other == primary for other in others)
