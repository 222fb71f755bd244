"""Rules of the allocator that differ from upstream, and its laws; the others are held by the recorded answers."""

from collections import Counter
from itertools import combinations
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from koord_numa.core.claims.allocator import Allocated, NotAllocated
from koord_numa.core.objects.claims import NEW_SHARE, Allocation, DeviceUsage, Features
from tests.core.claims.worlds import cel, claim_object, decide, device, devices_of, published, request
from tests.tables import each_row

GI = 2**30 * 10**9


def test_counters_are_accounts_of_driver_and_pool() -> None:
    one = published("mig-a", [device("p", consumes={"m": "6Gi"})], counters={"m": "8Gi"})
    two = published("mig-b", [device("q", consumes={"m": "6Gi"})], counters={"m": "8Gi"})
    assert devices_of(decide([one, two], [claim_object(request("a", "mig-a"), request("b", "mig-b"))])) == ["p", "q"]


def test_a_rejected_partition_gives_its_counters_back() -> None:
    taint = {"key": "broken", "effect": "NoSchedule"}
    parts = [device("p", consumes={"m": "6Gi"}, taints=[taint]), device("q", consumes={"m": "6Gi"})]
    assert devices_of(
        decide([published("mig", parts, counters={"m": "8Gi"})], [claim_object(request("r", "mig"))])
    ) == ["q"]


def test_distinct_values_differ_pairwise() -> None:
    gpus = published(
        "gpu", [device(name, attributes={"model": model}) for name, model in zip("abc", "XYX", strict=True)]
    )
    three = claim_object(request("r", "gpu", count=3), constraints=[{"distinctAttribute": "gpu/model"}])
    assert devices_of(decide([gpus], [three])) == ["cannot allocate all claims"]
    two = claim_object(request("r", "gpu", count=2), constraints=[{"distinctAttribute": "gpu/model"}])
    assert devices_of(decide([gpus], [two])) == ["a", "b"]


def _listed(**values: Any) -> Any:
    return published("gpu", [device(name, attributes={"a": value}) for name, value in values.items()])


def _constrained(kind: str, count: int) -> Any:
    return claim_object(request("r", "gpu", count=count), constraints=[{f"{kind}Attribute": "gpu/a"}])


NO = ["cannot allocate all claims"]


@each_row(
    ("kind", "values", "picked"),
    [
        ("match", {"a": [1, 2], "b": [2, 3], "c": [2]}, ["a", "b", "c"]),
        ("match", {"a": [1, 2], "b": [2, 3], "c": [1, 3]}, NO),  # each pair has a common value, the three have none
        ("match", {"a": [0, 1], "b": [2], "c": [1, 2], "d": [1]}, ["a", "c", "d"]),
        ("match", {"a": 1, "b": [1, 2], "c": [1]}, ["a", "b", "c"]),
        ("match", {"a": ["1"], "b": [1], "c": 1}, NO),  # a string is no int
        ("match", {"a": [True], "b": [1], "c": 1}, NO),
        ("match", {"a": {"version": "1.0.0"}, "b": {"versions": ["1.0.0", "2.0.0"]}, "c": {"version": "1.0.0"}}, ["a", "b", "c"]),
        ("match", {"a": {"version": "1.0.0"}, "b": {"string": "1.0.0"}, "c": {"version": "1.0.0"}}, NO),
        ("match", {"a": [1], "b": {"later": {"x": 1}}, "c": [1], "d": [1]}, ["a", "c", "d"]),  # an unknown type costs its device
        ("distinct", {"a": [1, 2], "b": [2, 3], "c": [3, 4], "d": 5}, ["a", "c", "d"]),
        ("distinct", {"a": [1, 2], "b": [3, 4], "c": [1, 4]}, NO),
        ("distinct", {"a": [1, 2], "b": {"later": [3]}, "c": ["1"], "d": [True]}, ["a", "c", "d"]),
    ],
)  # fmt: skip
def test_constraints_compare_lists_as_sets(kind: str, values: dict[str, Any], picked: list[str]) -> None:
    assert devices_of(decide([_listed(**values)], [_constrained(kind, 3)])) == picked


VALUES = st.lists(st.lists(st.integers(0, 4), min_size=1, max_size=3), min_size=1, max_size=6)


@given(VALUES, st.sampled_from(["match", "distinct"]), st.integers(1, 4))
def test_constraints_on_lists_find_what_trying_all_sets_finds(lists: list[list[int]], kind: str, count: int) -> None:
    def allowed(chosen: tuple[list[int], ...]) -> bool:
        if kind == "match":
            return bool(set.intersection(*map(set, chosen)))
        return sum(len(set(each)) for each in chosen) == len(set().union(*chosen))

    possible = any(allowed(chosen) for chosen in combinations(lists, count))
    slices = [_listed(**{f"d{at}": values for at, values in enumerate(lists)})]
    assert isinstance(decide(slices, [_constrained(kind, count)]), Allocated) == possible


def test_many_equal_devices_do_not_make_the_search_explode() -> None:
    gpus = published("gpu", [device(f"g{at}", attributes={"side": at % 2, "uuid": f"u{at}"}) for at in range(40)])
    wanted = claim_object(request("r", "gpu", count=21), constraints=[{"matchAttribute": "gpu/side"}])
    answer = decide([gpus], [wanted])
    assert isinstance(answer, NotAllocated)
    assert not answer.error
    assert answer.steps < 1000


@pytest.mark.parametrize(("count", "expected"), [(2, ["m", "m"]), (3, ["cannot allocate all claims"])])
def test_a_shared_device_serves_requests_up_to_its_capacity(count: int, expected: list[str]) -> None:
    memory = published("mem", [device("m", capacity={"size": "8Gi"}, allowMultipleAllocations=True)])
    requests = [request(f"r{at}", "mem", capacity={"requests": {"size": "4Gi"}}) for at in range(count)]
    assert devices_of(decide([memory], [claim_object(*requests)])) == expected


PROFILES = st.sampled_from([1, 2, 4])


@st.composite
def worlds(draw: st.DrawFn) -> dict[str, Any]:
    """Whole and partitioned GPUs, shared memory, and some claims."""
    gpus = [
        device(f"g{at}", attributes={"numa": draw(st.integers(0, 1)), "model": draw(st.sampled_from(["A", "B"]))})
        for at in range(draw(st.integers(0, 4)))
    ]
    parts = [device(f"p{at}", consumes={"m": f"{draw(PROFILES)}Gi"}) for at in range(draw(st.integers(0, 5)))]
    memory = [
        device(f"m{at}", capacity={"size": f"{draw(st.integers(1, 8))}Gi"}, allowMultipleAllocations=True)
        for at in range(2)
    ]
    claims = []
    for number in range(draw(st.integers(1, 3))):
        requests = [
            request("gpu", "gpu", count=draw(st.integers(1, 2)), selectors=draw(st.sampled_from([[], [cel(MODEL)]]))),
            request("mig", "mig", count=draw(st.integers(1, 2))),
            request("mem", "mem", capacity={"requests": {"size": f"{draw(st.integers(1, 5))}Gi"}}),
        ]
        chosen = draw(st.lists(st.sampled_from(requests), min_size=1, max_size=3, unique_by=lambda it: it["name"]))
        constraints = draw(st.sampled_from([[], [{"matchAttribute": "gpu/numa", "requests": ["gpu"]}]]))
        names = {each["name"] for each in chosen}
        claims.append(claim_object(*chosen, name=f"c{number}", constraints=constraints if "gpu" in names else []))
    slices = [
        published("gpu", gpus),
        published("mig", parts, counters={"m": "5Gi"}),
        published("mem", memory),
    ]
    return {"slices": slices, "claims": claims, "size": {it["name"]: it["capacity"]["size"]["value"] for it in memory}}


MODEL = 'device.attributes["gpu"].model == "A"'


@settings(deadline=None)
@given(worlds())
def test_sequential_claims_never_get_a_device_or_amount_twice(world: dict[str, Any]) -> None:
    usage = DeviceUsage()
    given_out: list[Allocation] = []
    for claim in world["claims"]:
        answer = decide(world["slices"], [claim], usage=usage)
        if isinstance(answer, Allocated):
            given_out.extend(answer.allocations)
            usage.add(answer.allocations[0])
    results = [result for allocation in given_out for result in allocation.results]
    assert max(Counter(it.device for it in results if not it.share_id).values(), default=0) <= 1
    held: Counter[str] = Counter()
    for result in results:
        assert (result.share_id == NEW_SHARE) == (result.device.driver == "mem")
        held.update({result.device.device: dict(result.consumed).get("size", 0)})
    for name, size in world["size"].items():
        assert held[name] <= int(size.removesuffix("Gi")) * GI
    parts = {it.id: it for each in world["slices"] for it in each.devices}
    assert sum(parts[it.device].consumes[0][1]["m"] for it in results if it.device.driver == "mig") <= 5 * GI
    for allocation in given_out:
        usage.remove(allocation)
    assert usage == DeviceUsage()


@settings(deadline=None)
@given(worlds(), st.randoms(use_true_random=False))
def test_the_order_in_which_slices_are_known_does_not_matter(world: dict[str, Any], random: Any) -> None:
    shuffled = list(world["slices"])
    random.shuffle(shuffled)
    assert decide(shuffled, world["claims"]) == decide(world["slices"], world["claims"])


BINDS = device("late", bindingConditions=["ready"], bindingFailureConditions=["failed"])


@each_row(("served", "picked"), [(True, ["late"]), (False, ["cannot allocate all claims"])])
@each_row("mode", [{}, {"allocationMode": "All"}])
def test_devices_with_binding_conditions_need_the_gate(served: bool, picked: list[str], mode: dict[str, str]) -> None:
    gates = Features(binding_conditions=served)
    assert (
        devices_of(decide([published("gpu", [BINDS])], [claim_object(request("r", "gpu", **mode))], gates=gates))
        == picked
    )


@each_row(
    ("constraint", "gates", "answer"),
    [
        ({}, Features(), "empty constraint (unsupported constraint type?)"),
        ({"requests": ["r"]}, Features(), "empty constraint (unsupported constraint type?)"),
        ({"matchAttribute": ""}, Features(), "cannot allocate all claims"),
        ({"distinctAttribute": "gpu/a"}, Features(consumable_capacity=False), "a"),
        (
            {"distinctAttribute": "gpu/a"},
            Features(consumable_capacity=False, binding_conditions=False),
            "empty constraint (unsupported constraint type?)",
        ),
    ],
)
def test_constraints_that_name_no_attribute_are_an_error(constraint: Any, gates: Features, answer: str) -> None:
    slices = [published("gpu", [device("a", attributes={"a": 1})])]
    (first, *_) = devices_of(decide(slices, [claim_object(request("r", "gpu"), constraints=[constraint])], gates=gates))
    assert first.endswith(answer)


def test_admin_access_shares_a_device_with_itself() -> None:
    shared = device("s", capacity={"m": "4"}, allowMultipleAllocations=True)
    asks = claim_object(request("r", "gpu", count=1, adminAccess=True), request("q", "gpu", adminAccess=True))
    found = decide(
        [published("gpu", [shared | {"capacity": {"m": {"value": "4", "requestPolicy": {"default": "2"}}}}])], [asks]
    )
    assert isinstance(found, Allocated)
    results = found.allocations[0].results
    assert [(it.device.device, it.admin_access, it.share_id, it.consumed) for it in results] == [
        ("s", True, NEW_SHARE, (("m", 2 * 10**9),)),
        ("s", True, NEW_SHARE, (("m", 2 * 10**9),)),
    ]
    # What the search has given out counts, with admin access as without.
    assert devices_of(decide([published("gpu", [shared])], [asks])) == NO


@each_row("published_as", ["memory", "gpu/memory"])
@each_row("requested_as", ["memory", "gpu/memory"])
def test_capacities_match_with_and_without_the_driver_domain(published_as: str, requested_as: str) -> None:
    made = device("a", capacity={published_as: "4"}, allowMultipleAllocations=True)
    for amount, picked in (("3", ["a"]), ("5", NO)):
        asks = claim_object(request("r", "gpu", capacity={"requests": {requested_as: amount}}))
        found = decide([published("gpu", [made])], [asks])
        assert devices_of(found) == picked
        if isinstance(found, Allocated):
            assert found.allocations[0].results[0].consumed == ((published_as, 3 * 10**9),)
