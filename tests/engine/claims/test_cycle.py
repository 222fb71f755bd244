"""Knowledge of claims, and the Reserve and PreBind steps: a claim counts exactly once in any order and after any failure."""

from typing import Any

import pytest

from koord_numa.core.kubelet.view import kubelet_view
from koord_numa.core.objects.claims import DeviceUsage, PodClaims, PodResourceClaim, ResourceClaim
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology
from koord_numa.core.objects.request import NumaSpec, Pod, PodKey, PodRequest
from koord_numa.core.objects.verdicts import Placement, Rejection, Unschedulable
from koord_numa.core.objects.vocabulary import CpuOwner, KubeletPolicy, NumaPolicy
from koord_numa.core.scheduling.request import Profile, scheduling_request
from koord_numa.core.state.inventory import candidate
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import replace
from koord_numa.engine.binding.pre_bind import ClaimPreBind
from koord_numa.engine.claims.late_check import UNAVAILABLE, ClaimCheck, Deallocation, Outside
from koord_numa.engine.claims.lister import ClaimLister
from koord_numa.engine.claims.pod_claims import PodClaimResolver
from koord_numa.ports import DELETED, Conflict, Unavailable
from koord_numa.wire.resource_claims import parse_resource_claim
from tests.core.claims.worlds import claim_object, device, device_class, published, request
from tests.engine.claims.claim_server import FakeClaimWriter

NODE = Node("node-1")
POD = Pod(PodKey("default", "pod", "uid-pod"), PodRequest(), resource_claims=(PodResourceClaim("c", "claim"),))


class World:
    """One node with two GPUs on different NUMA nodes, and one claim."""

    def __init__(self, **claim: Any) -> None:
        self.changes: list[str] = []
        self.placed: list[Pod] = []
        self.lister = ClaimLister(lambda: self.changes.append("devices"), lambda key: self.changes.append(str(key)))
        self.resolver = PodClaimResolver(self.lister)
        gpus = [
            device(name, attributes={"resource.kubernetes.io/numaNode": numa}) for name, numa in (("a", 0), ("b", 1))
        ]
        self.lister.replace_slices([published("gpu", gpus)])
        self.lister.replace_classes([device_class("gpu")])
        self.lister.observe_claim(None, self.claim(**claim))
        self.lister.synced()
        self.server = FakeClaimWriter(self.lister)
        self.step = ClaimPreBind(self.lister, self.resolver, self.server, self.waits, self.waits)

    def deallocation(self) -> Deallocation:
        """Return the claims that a pod without a suitable node deallocates."""
        outside = Outside(self.server, FakeLeader(), self.waits, self.waits)
        return Deallocation(self.lister, self.resolver, self.placed.copy, outside)

    async def waits(self, pod: PodKey) -> bool:
        """Return true if the pod has no node."""
        return all(it.key != pod for it in self.placed)

    @staticmethod
    def claim(name: str = "claim", count: int = 1, version: str = "1") -> ResourceClaim:
        """A claim for GPUs."""
        return replace(parse_resource_claim(claim_object(request("r", "gpu", count=count), name=name)), version=version)

    def check(
        self, pod: Pod = POD, policy: NumaPolicy = NumaPolicy.NONE, mask: int | None = None
    ) -> Placement | Rejection:
        """The late check of the node."""
        claims = self.resolver.of(pod)
        assert claims is not None
        assert not claims.problem
        return asked(self.lister, claims, NODE, Placement("node-1", mask=mask), policy)

    def placed_on(self, pod: Pod = POD) -> Placement:
        """A placement with devices."""
        found = self.check(pod)
        assert isinstance(found, Placement)
        return found

    @property
    def in_use(self) -> list[str]:
        """Devices that count as in use."""
        return sorted(it.device for it in self.lister.usage.exclusive)


def asked(
    lister: ClaimLister, claims: PodClaims, node: Node, placement: Placement, policy: NumaPolicy = NumaPolicy.NONE
) -> Placement | Rejection:
    """Check a kubelet-owned node without a NUMA policy. The kubelet is expected to use the placement's NUMA nodes."""
    request = PodRequest(numa=NumaSpec(policy))
    ask = replace(scheduling_request(request, Profile()), claims=claims)
    topology = NodeResourceTopology(node.name, CpuOwner.KUBELET, kubelet=KubeletConfig(KubeletPolicy.SINGLE_NUMA_NODE))
    seen = candidate(node, kubelet_view(node, topology, ()), Ledger())
    return ClaimCheck(lister, claims, lambda _: None).check(ask, seen, placement)


def names(placement: Placement | Rejection) -> list[str]:
    """The devices of a placement."""
    assert isinstance(placement, Placement), placement
    return [it.device.device for allocation in placement.allocations for it in allocation.results]


async def test_a_claim_counts_once_from_the_decision_on() -> None:
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    assert world.in_use == ["a"]
    await world.step.do(POD, placement)
    assert world.in_use == ["a"]
    assert not world.lister.assumed
    world.step.post_bind(POD, placement)
    assert world.in_use == ["a"]
    assert world.lister.claims["default", "claim"].reserved_for == ("uid-pod",)


async def test_an_older_event_does_not_undo_what_was_written() -> None:
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    await world.step.do(POD, placement)
    world.lister.observe_claim("MODIFIED", world.claim(version="2"))
    assert world.in_use == ["a"]


async def test_a_write_that_fails_gives_the_devices_back() -> None:
    world = World()
    placement = world.placed_on()
    world.server.fails = Unavailable("busy")
    world.step.reserve(POD, placement)
    with pytest.raises(Unavailable):
        await world.step.do(POD, placement)
    await world.step.undo(POD, placement)
    world.step.unreserve(POD, placement)
    assert world.in_use == []
    assert world.lister.usage == DeviceUsage()
    assert world.server.released == ["uid-pod"]


async def test_a_failed_bind_keeps_allocation_and_drops_reservation() -> None:
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    await world.step.do(POD, placement)
    await world.step.undo(POD, placement)
    world.step.unreserve(POD, placement)
    assert world.in_use == ["a"]
    assert world.server.released == ["uid-pod"]
    assert names(world.check()) == []  # the next decision uses what is allocated


async def test_a_reservation_stays_if_the_pod_has_a_node() -> None:
    """Another leader bound it by this reservation, or our own bind had effect though it seemed to fail."""
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    await world.step.do(POD, placement)
    world.placed.append(replace(POD, node="node-1"))
    await world.step.undo(POD, placement)
    assert world.server.released == []


async def test_a_response_after_the_claim_is_gone_is_ignored() -> None:
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    written = await world.server.reserve(world.claim(), POD.key, placement.allocations[0])
    world.lister.observe_claim(DELETED, world.claim())
    world.lister.observe_written(written)
    assert world.in_use == []
    assert not world.lister.claims


def test_a_deleted_claim_frees_its_devices_and_says_so() -> None:
    world = World()
    world.step.reserve(POD, world.placed_on())
    world.changes.clear()
    world.lister.observe_claim(DELETED, world.claim())
    assert world.in_use == []
    assert "devices" in world.changes


def test_a_claim_in_flight_is_waited_for_by_other_pods() -> None:
    world = World()
    world.step.reserve(POD, world.placed_on())
    other = replace(POD, key=PodKey("default", "other", "uid-other"))
    claims = world.resolver.of(other)
    assert claims is not None
    assert claims.problem == "resource claim default/claim is in the process of being allocated"


def test_a_decision_about_claims_that_have_changed_is_void() -> None:
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    with pytest.raises(Conflict):
        world.step.reserve(replace(POD, key=PodKey("default", "other", "uid-other")), placement)


@pytest.mark.parametrize(
    ("entry", "problem"),
    [
        (PodResourceClaim("c", from_template=True), 'pod "default/pod": ResourceClaim not created yet'),
        (PodResourceClaim("c", "nosuch"), 'resourceclaim "nosuch" not found'),
        (
            PodResourceClaim("c", "claim", from_template=True),
            "ResourceClaim default/claim was not created for Pod default/pod (Pod is not owner)",
        ),
    ],
)
def test_why_a_pod_is_not_tried_yet(entry: PodResourceClaim, problem: str) -> None:
    claims = World().resolver.of(replace(POD, resource_claims=(entry,)))
    assert claims is not None
    assert claims.problem == problem


def test_pods_of_one_template_share_what_they_ask_for() -> None:
    world = World()
    world.lister.observe_claim(None, world.claim("second"))
    second = replace(POD, key=PodKey("default", "p2", "uid-2"), resource_claims=(PodResourceClaim("c", "second"),))
    assert world.resolver.of(POD) == world.resolver.of(second)


def test_devices_are_on_the_numa_nodes_of_the_pod() -> None:
    world = World()
    assert names(world.check(mask=0b10)) == ["b"]
    assert names(world.check(policy=NumaPolicy.SINGLE_NUMA_NODE, mask=0b10)) == ["b"]
    two = World(count=2)
    assert names(two.check(mask=0b10)) == ["a", "b"]
    refused = two.check(policy=NumaPolicy.SINGLE_NUMA_NODE, mask=0b10)
    assert isinstance(refused, Rejection)
    assert refused.detail == "claim c, request r: 2 wanted, 2 of 2 devices match, 2 free (1 on NUMA 0, 1 on NUMA 1)"


async def test_an_unshared_allocation_for_another_node_is_given_up() -> None:
    world = World()
    placement = world.placed_on()
    world.step.reserve(POD, placement)
    await world.step.do(POD, placement)
    claims = world.resolver.of(POD)
    assert claims is not None
    refused = asked(world.lister, claims, Node("node-2"), Placement("node-2"))
    assert isinstance(refused, Rejection)
    assert refused.message == UNAVAILABLE
    work = world.deallocation()
    work.consider(POD, Unschedulable({"node-2": refused}))
    claim, pod = work._noted.popitem()[1]
    world.placed.append(replace(POD, key=PodKey("default", "other", "uid-other"), node="node-1"))
    await work._deallocate(claim, pod)
    assert world.server.deallocated == []  # a pod with a node uses it, though its reservation is missing
    world.placed.clear()
    await work._deallocate(claim, pod)
    assert world.server.deallocated == ["claim"]
    assert world.in_use == []


class FakeLeader:
    def fresh(self) -> bool:
        return True

    def remaining(self) -> float:
        return 10.0
