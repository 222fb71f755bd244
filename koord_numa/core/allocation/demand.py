"""The demand of a pod on any node: amounts, CPU binding and NUMA policy, with the configured defaults."""

from collections.abc import Hashable
from dataclasses import dataclass, field
from enum import Enum
from typing import Any

from koord_numa.core.explain import needs_text
from koord_numa.core.objects.request import CpuBind, NumaSpread, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    CpuBindPolicy,
    CpuExclusivePolicy,
    KubeQos,
    NumaAllocateStrategy,
    NumaExclusive,
    NumaPolicy,
    QosClass,
    RestrictedRule,
)
from koord_numa.core.pod_resources import effective_limits, effective_requests, is_limited, kube_qos
from koord_numa.core.qos import (
    OWN_CPUS,
    is_exclusive_by_policy,
    may_use_cpuset,
    pinned_by_static_kubelet,
    unequal_limits,
)
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.score.node_scores import Strategy
from koord_numa.core.state.numa_free import Accounting
from koord_numa.core.value_objects import value_object


class WithoutTopology(Enum):
    """The treatment of a pod with a NUMA policy on a node without NUMA data."""

    REFUSE = "refuse"
    PERMIT = "permit"


@dataclass(frozen=True, slots=True)
class AllocateOptions:
    """
    The configured defaults.

    ``bind`` is for pods with exclusive CPUs that name no policy (``NONE``: they get no exclusive CPUs). ``numa_policy``
    is for pods with exclusive CPUs if neither pod nor node names one. ``exclusive`` is for pods with a NUMA policy but
    no exclusivity. ``strategy`` is for nodes that name none. ``scoring`` ranks equally wide sets of NUMA nodes.
    ``restricted``: the sets that Restricted prefers.
    """

    bind: CpuBindPolicy = CpuBindPolicy.FULL_PCPUS
    numa_policy: NumaPolicy = NumaPolicy.BEST_EFFORT
    exclusive: NumaExclusive = NumaExclusive.REQUIRED
    strategy: NumaAllocateStrategy = NumaAllocateStrategy.LEAST_ALLOCATED
    scoring: Strategy | None = field(default_factory=Strategy)
    without_topology: WithoutTopology = WithoutTopology.REFUSE
    accounting: Accounting = Accounting.EVERY_POD
    restricted: RestrictedRule = RestrictedRule.EMPTY_NODE


NOT_WHOLE = Rejection(Reason.CPU_COUNT, "the requested CPUs must be integer", resolvable=False)


class CpuUse(Enum):
    """The kind of CPUs that the pod itself requests."""

    OWN = "its own"
    SHARED = "shared"
    POOL_OF_ONE_NUMA = "the shared pool of one NUMA node"  # ConstrainedBurst


@value_object
class AllocationDemand:
    """
    A pod as input of an allocation.

    ``burst`` is the CPU (milli) that a ConstrainedBurst pod may use at its limit. ``pinned`` has the CPUs of each
    container that a static kubelet would pin. ``pinnable``: the pod then gets exclusive CPUs on such a node.
    ``may_bind_cores``: nodes that allocate only full cores accept the pod. ``prefers_spread``: the pod prefers
    SpreadByPCPUs. ``why_shared`` is the reason, as a clause, why its CPUs are not exclusive. ``claims``: the pod has
    resource claims, which may hold CPUs. ``isolated``: the pod prefers CPUs of the kernel's isolcpus.
    """

    amounts: ResourceList
    use: CpuUse = CpuUse.SHARED
    required: CpuBindPolicy = CpuBindPolicy.NONE
    preferred: CpuBindPolicy = CpuBindPolicy.NONE
    cpu_exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    isolated: bool = False
    numa: NumaPolicy = NumaPolicy.NONE
    numa_exclusive: NumaExclusive = NumaExclusive.NONE
    spread: NumaSpread | None = None
    strategy: NumaAllocateStrategy | None = None
    pinned: tuple[int, ...] = ()
    pinnable: bool = False
    may_bind_cores: bool = False
    prefers_spread: bool = False
    best_effort: bool = False
    burst: int = 0
    why_shared: str = ""
    claims: bool = False
    options: AllocateOptions = field(default_factory=AllocateOptions)
    derived: dict[Hashable, Any] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )  # results of other modules, by their node-dependent key

    @property
    def cpu(self) -> int:
        """Return the requested milli-CPU."""
        return self.amounts.get(CPU, 0)

    @property
    def has_whole_cpus(self) -> bool:
        """Return whether the request is a whole, positive number of CPUs."""
        return self.cpu > 0 and self.cpu % MILLI == 0


def demand_of(request: PodRequest, options: AllocateOptions) -> AllocationDemand | Rejection:
    """Return the demand of the pod, or a rejection if no node can ever serve it."""
    # A request of 0 of a resource restricts nothing (KEP-119): NUMA nodes without the resource stay eligible.
    amounts = {name: amount for name, amount in effective_requests(request).items() if amount}
    use, bind = _use(request, options)
    cpu = amounts.get(CPU, 0)
    if use is CpuUse.OWN:
        # Fractions cannot be exclusive CPUs. Koordinator's PreFilter also rejects them for LSE and LSR pods.
        if cpu % MILLI:
            return NOT_WHOLE
        if unequal := unequal_limits(request):
            return Rejection(
                Reason.BAD_POD,
                "requests and limits of LSE and LSR pods must be equal",
                detail=f"{request.qos} pod with a {' and '.join(unequal)} limit above its request",
                resolvable=False,
            )
    # A pod with zero CPUs owns none, whatever its QoS class: its CPUs are shared.
    own = use is CpuUse.OWN and cpu > 0
    pinned = pinned_by_static_kubelet(request)
    return AllocationDemand(
        amounts=amounts,
        use=use if own or use is not CpuUse.OWN else CpuUse.SHARED,
        # Required policies and exclusivity only affect exclusive CPUs. The preferred policy stays, for nodes that bind
        # every pod.
        required=bind.required if own else CpuBindPolicy.NONE,
        preferred=bind.preferred,
        cpu_exclusive=bind.exclusive if own else CpuExclusivePolicy.NONE,
        isolated=request.bind.isolated,
        numa=request.numa.policy,
        numa_exclusive=_numa_exclusive(request, options),
        spread=request.numa_spread,
        strategy=request.numa.strategy,
        pinned=pinned,
        # A pod with a QoS class follows Koordinator's rules. Only a pod without a class is left to the kubelet's static
        # policy.
        pinnable=request.qos is QosClass.NONE and cpu % MILLI == 0 and bool(pinned),
        may_bind_cores=request.qos in OWN_CPUS or kube_qos(request) is KubeQos.GUARANTEED,
        prefers_spread=request.bind.preferred is CpuBindPolicy.SPREAD_BY_PCPUS
        and request.bind.required is CpuBindPolicy.NONE,
        best_effort=request.qos is QosClass.BE or kube_qos(request) is KubeQos.BEST_EFFORT,
        # Without a limit there is no burst above the request: "unlimited" would need a pool of infinite size.
        burst=max(cpu, effective_limits(request).get(CPU, 0)) if is_limited(request, CPU) else cpu,
        why_shared=_why_shared(request, cpu),
        options=options,
    )


def _use(request: PodRequest, options: AllocateOptions) -> tuple[CpuUse, CpuBind]:
    """
    Return the use of CPUs and the bind policies with the configured default.

    As Koordinator's PreFilter: a policy other than FullPCPUs and SpreadByPCPUs binds nothing. ConstrainedBurst is from
    the orchestration proposal. Koordinator does not implement it.
    """
    bind = _with_defaults(request.bind, options)
    effective = bind.required if bind.required is not CpuBindPolicy.NONE else bind.preferred
    # Tested before ownership: the policy replaces exclusive CPUs by a share of a pool, even for LSR pods.
    if effective is CpuBindPolicy.CONSTRAINED_BURST:
        return CpuUse.POOL_OF_ONE_NUMA, bind
    own = may_use_cpuset(request) or is_exclusive_by_policy(request)
    return (CpuUse.OWN if own and effective is not CpuBindPolicy.NONE else CpuUse.SHARED), bind


def _with_defaults(bind: CpuBind, options: AllocateOptions) -> CpuBind:
    # ``Default`` and an absent preference stand for the configured policy. An absent requirement stays absent.
    unset = (CpuBindPolicy.NONE, CpuBindPolicy.DEFAULT)
    return CpuBind(
        required=options.bind if bind.required is CpuBindPolicy.DEFAULT else bind.required,
        preferred=options.bind if bind.preferred in unset else bind.preferred,
        exclusive=bind.exclusive,
    )


def _numa_exclusive(request: PodRequest, options: AllocateOptions) -> NumaExclusive:
    """
    Return the NUMA exclusivity. The default is only for pods with a NUMA policy of their own.

    Source: pod-level NUMA policy, "SingleNUMANodeExclusive".
    """
    if request.numa.exclusive is not NumaExclusive.NONE or request.numa.policy is NumaPolicy.NONE:
        return request.numa.exclusive
    return options.exclusive


def _why_shared(request: PodRequest, cpu: int) -> str:
    qos = kube_qos(request)
    if not cpu:
        return "it requests no CPU"
    if cpu % MILLI:
        return f"it requests {needs_text({CPU: cpu})}, which is no whole number"
    if request.qos in OWN_CPUS:
        return f"as an {request.qos} pod outside the production band it has no CPUs of its own"
    if request.qos is not QosClass.NONE:
        return f"its QoS class is {request.qos}"
    if qos is not KubeQos.GUARANTEED:
        return f"it is {qos}"
    return "it is Guaranteed, but of no QoS class that has CPUs of its own (LSE, LSR)"
