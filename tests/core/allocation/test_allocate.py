"""One pod before one node: whole placements, case by case."""

import pytest

from koord_numa.core.allocation.allocate import AllocateOptions, WithoutTopology
from koord_numa.core.cpuset import EMPTY
from koord_numa.core.objects.request import PodRequest, SharedPool
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    NodeBindPolicy,
    NumaAllocateStrategy,
)
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.value_objects import replace
from tests.core.allocation.nodes import (
    ALIGNED,
    BE,
    BEST_EFFORT,
    BURST,
    DEFAULTS,
    GI,
    LS,
    LSE,
    LSR,
    RESTRICTED,
    SINGLE,
    SPREAD,
    UNASKED,
    cpus,
    node,
    place,
    pod,
)
from tests.tables import each_row


@each_row(
    ("request_", "where", "options", "expected"),
    [
        pytest.param(
            pod(4000, qos=LSR, priority=9500),
            node(),
            UNASKED,
            cpus(
                "0-3",
                note="no NUMA alignment was attempted: neither pod nor node names a NUMA policy, and none is configured",
            ),
            id="lsr-without-any-policy-gets-full-cores",
        ),
        pytest.param(
            pod(4000, 8 * GI, qos=LSR),
            node(),
            DEFAULTS,
            cpus("0-3", numa=((0, {"cpu": 4000, "memory": 8 * GI}),), mask=1, alignment=ALIGNED),
            id="lsr-is-aligned-by-the-configured-default",
        ),
        pytest.param(
            pod(12000, qos=LSR),
            node(),
            DEFAULTS,
            cpus("0-5,8-13", numa=((0, {"cpu": 6000}), (1, {"cpu": 6000})), mask=3, alignment=ALIGNED),
            id="best-effort-spans-when-it-must",
        ),
        pytest.param(
            pod(4000, 8 * GI),
            node(policy=SINGLE),
            DEFAULTS,
            Placement(
                "n",
                numa=((0, {"cpu": 4000, "memory": 8 * GI}),),
                shared_pools=(SharedPool(0, 0, EMPTY),),
                mask=1,
                alignment=ALIGNED,
            ),
            id="ls-on-a-single-numa-node-gets-its-pool",
        ),
        pytest.param(
            pod(4000, qos=LS),
            node(bind=NodeBindPolicy.SPREAD_BY_PCPUS),
            UNASKED,
            cpus(
                "0,2,4,6",
                SPREAD,
                bind_required=True,
                note="no NUMA alignment was attempted: neither pod nor node names a NUMA policy, and none is configured",
            ),
            id="a-node-that-binds-binds-ls-too",
        ),
        pytest.param(
            pod(4000, qos=LSR, preferred=CpuBindPolicy.FULL_PCPUS, numa=SINGLE),
            node(bind=NodeBindPolicy.FULL_PCPUS_ONLY),
            DEFAULTS,
            cpus("0-3", bind_required=True, numa=((0, {"cpu": 4000}),), mask=1, alignment=ALIGNED),
            id="the-nodes-policy-turns-a-preference-into-a-demand",
        ),
        pytest.param(
            pod(4000, qos=LSE, preferred=SPREAD, numa=SINGLE, cpu_exclusive=CpuExclusivePolicy.PCPU_LEVEL),
            node(),
            DEFAULTS,
            cpus(
                "0,2,4,6",
                SPREAD,
                numa=((0, {"cpu": 4000}),),
                mask=1,
                alignment=ALIGNED,
            ),
            id="lse-spread-with-exclusive-cores",
        ),
        pytest.param(
            pod(1000, 1, numa=SINGLE),
            node(),
            DEFAULTS,
            cpus("0", numa=((0, {"cpu": 1000, "memory": 1}),), mask=1, alignment=ALIGNED),
            id="single-numa-policy-with-limit-equal-to-request-has-its-own-cpu",
        ),
        pytest.param(
            pod(1000, 1, limit=2000, numa=SINGLE),
            node(),
            DEFAULTS,
            Placement(
                "n",
                numa=((0, {"cpu": 1000, "memory": 1}),),
                shared_pools=(SharedPool(0, 0, EMPTY),),
                mask=1,
                alignment=ALIGNED,
            ),
            id="single-numa-policy-with-a-higher-limit-is-in-the-shared-pool",
        ),
        pytest.param(
            pod(2000, 1, numa=SINGLE, gpus=1),
            replace(
                node(gpus=1),
                zones=(
                    (0, {"cpu": 8000, "memory": GI, "nvidia.com/gpu": 0}),
                    (1, {"cpu": 8000, "memory": GI, "nvidia.com/gpu": 1}),
                ),
            ),
            DEFAULTS,
            cpus("8-9", numa=((1, {"cpu": 2000, "memory": 1, "nvidia.com/gpu": 1}),), mask=2, alignment=ALIGNED),
            id="gpu-and-cpu-on-one-numa-node",
        ),
        pytest.param(
            pod(3500, numa=RESTRICTED),
            node("2x1x1x2"),
            DEFAULTS,
            Placement(
                "n",
                numa=((0, {"cpu": 1750}), (1, {"cpu": 1750})),
                shared_pools=(SharedPool(0, 0, EMPTY), SharedPool(1, 1, EMPTY)),
                mask=3,
                alignment=ALIGNED,
            ),
            id="restricted-spans-as-few-as-it-can",
        ),
        pytest.param(
            pod(2000, 1),
            node(static_kubelet=True),
            UNASKED,
            cpus(
                "0-1",
                note="no NUMA alignment was attempted: neither pod nor node names a NUMA policy, and none is configured",
            ),
            id="guaranteed-before-a-static-kubelet",
        ),
        pytest.param(
            pod(2000, 1),
            node(),
            DEFAULTS,
            Placement(
                "n",
                note="no NUMA alignment was attempted: neither pod nor node names a NUMA policy, "
                "and it is Guaranteed, but has no QoS class with exclusive CPUs (LSE, LSR)",
            ),
            id="guaranteed-otherwise-is-ls",
        ),
        pytest.param(
            pod(1500, 1, limit=2000),
            node(),
            DEFAULTS,
            Placement(
                "n",
                note="no NUMA alignment was attempted: neither pod nor node names a NUMA policy, "
                "and it requests 1.5 CPUs, which is not a whole number",
            ),
            id="fractional-cpu-says-so",
        ),
        pytest.param(
            pod(0, qos=BE, others={"kubernetes.io/batch-cpu": 4000}),
            node(bind=NodeBindPolicy.SPREAD_BY_PCPUS),
            DEFAULTS,
            Placement(
                "n",
                note="no NUMA alignment was attempted: neither pod nor node names a NUMA policy, and it requests no CPU",
            ),
            id="batch-pods-are-never-bound",
        ),
        pytest.param(
            pod(0, numa=SINGLE),
            node(),
            DEFAULTS,
            Placement(
                "n",
                note="no NUMA alignment was attempted: the pod requests nothing that the node's NUMA nodes publish",
            ),
            id="nothing-to-align",
        ),
        pytest.param(
            pod(4500, qos=LSE, preferred=BURST),
            node(),
            DEFAULTS,
            Placement(
                "n",
                numa=((0, {"cpu": 4500}),),
                shared_pools=(SharedPool(0, 0, EMPTY),),
                mask=1,
                alignment=ALIGNED,
            ),
            id="constrained-burst-binds-nothing",
        ),
        pytest.param(
            pod(2000, numa=SINGLE, qos=LSR),
            node("1x1x4x2"),
            DEFAULTS,
            cpus("0-1", alignment=ALIGNED),
            id="one-numa-node-needs-no-amounts",
        ),
        pytest.param(
            pod(1000, qos=LSR, numa=BEST_EFFORT),
            Inventory("n", machine=node().machine, allocatable={"cpu": 16000}),
            AllocateOptions(without_topology=WithoutTopology.PERMIT),
            cpus("0", note="no NUMA alignment was attempted: the node publishes no NUMA data"),
            id="without-zones-where-that-is-permitted",
        ),
        pytest.param(
            pod(1000, qos=LSR),
            Inventory("n", machine=node().machine, allocatable={"cpu": 16000}),
            DEFAULTS,
            cpus(
                "0",
                note="no NUMA alignment was attempted: neither pod nor node names a NUMA policy, "
                "and the node publishes no NUMA data",
            ),
            id="without-zones-no-provider",
        ),
        pytest.param(
            pod(6000, qos=LSR),
            node(strategy=NumaAllocateStrategy.DISTRIBUTE_EVENLY),
            DEFAULTS,
            cpus(
                "0-3,8-9",
                note="no NUMA alignment was attempted: neither pod nor node names a NUMA policy, "
                "and the CPUs are distributed evenly",
            ),
            id="evenly-in-whole-cores",
        ),
        pytest.param(
            pod(6000, qos=LSR),
            node(spans_evenly=True),
            UNASKED,
            cpus("0-5", numa=((0, {"cpu": 6000}),), mask=1, alignment=ALIGNED),
            id="a-kubelet-that-distributes-packs-what-fits",
        ),
        pytest.param(
            pod(10000, qos=LSR),
            node(spans_evenly=True),
            UNASKED,
            cpus("0-3,8-13", numa=((0, {"cpu": 4000}), (1, {"cpu": 6000})), mask=3, alignment=ALIGNED),
            id="a-kubelet-that-distributes-spans-evenly-in-whole-cores",
        ),
    ],
)
def test_placed(request_: PodRequest, where: Inventory, options: AllocateOptions, expected: Placement) -> None:
    assert place(request_, where, options=options) == expected
