"""
The demand of a pod, and the rules that apply to it on one node.

The demand has the amounts, the CPU binding and the NUMA policy, with the configured defaults.
"""

from collections.abc import Hashable
from dataclasses import field
from enum import Enum
from typing import Any, Final

from koord_numa.core.cpu_topology import CpuTopology
from koord_numa.core.cpus import Downgrade
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.explain import cpus_text, needs_text
from koord_numa.core.objects.request import CpuBind, NumaSpread, PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    NO_BIND_POLICY,
    CpuBindPolicy,
    CpuExclusivePolicy,
    KubeQos,
    NodeBindPolicy,
    NumaAllocateStrategy,
    NumaExclusive,
    NumaPolicy,
    QosClass,
    RestrictedRule,
    ScoringType,
)
from koord_numa.core.pod_resources import (
    OWN_CPUS,
    amplify,
    effective_limits,
    effective_requests,
    is_exclusive_by_policy,
    is_limited,
    kube_qos,
    may_use_cpuset,
    pinned_by_static_kubelet,
    unequal_limits,
)
from koord_numa.core.resources import CPU, MILLI, ResourceList
from koord_numa.core.score.node_scores import Counted, Strategy
from koord_numa.core.state.inventory import NodeTraits
from koord_numa.core.state.numa_free import Accounting
from koord_numa.core.value_objects import ValueObject, replace, value_field, value_object


class WithoutTopology(Enum):
    """The treatment of a pod with a NUMA policy on a node without NUMA data."""

    REFUSE = "refuse"
    PERMIT = "permit"


class AllocateOptions(ValueObject):
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
    scoring: Strategy | None = value_field(default_factory=Strategy)
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
        return f"it requests {needs_text({CPU: cpu})}, which is not a whole number"
    if request.qos in OWN_CPUS:
        return f"as an {request.qos} pod outside the production band it has no exclusive CPUs"
    if request.qos is not QosClass.NONE:
        return f"its QoS class is {request.qos}"
    if qos is not KubeQos.GUARANTEED:
        return f"it is {qos}"
    return "it is Guaranteed, but has no QoS class with exclusive CPUs (LSE, LSR)"


# Resolve the rules for a pod on a node: the effective NUMA policy, and whether and how the pod gets exclusive CPUs.
#
# Combines labels, kubelet settings and the pod's policies. Does not depend on free resources.

POLICY_MISMATCH: Final = "node(s) NUMA Topology policy not match"
NO_CPU_TOPOLOGY: Final = "node(s) invalid CPU Topology"
NO_NUMA_DATA: Final = "node(s) missing NUMA resources"
BIND_CONFLICT: Final = "node(s) cpu bind policy conflicts with pod's required cpu bind policy"
CPUS_BY_CLAIM: Final = "node(s) whose CPUs are allocated by claim (dra.cpu)"
NO_CPUS_WITHOUT_CLAIM: Final = Rejection(
    Reason.BIND_POLICY, CPUS_BY_CLAIM, "exclusive CPUs are available there by ResourceClaim only", resolvable=False
)
FULL_CORES_ONLY: Final = "node(s) allocate full cores only, to Guaranteed, LSE and LSR pods"
BROKEN_CORE: Final = "node(s) requested cpus not multiple cpus per core"

_IMPOSED: Final = {
    NodeBindPolicy.FULL_PCPUS_ONLY: CpuBindPolicy.FULL_PCPUS,
    NodeBindPolicy.SPREAD_BY_PCPUS: CpuBindPolicy.SPREAD_BY_PCPUS,
}
_FILLING: Final = {
    NumaAllocateStrategy.MOST_ALLOCATED: ScoringType.MOST_ALLOCATED,
    NumaAllocateStrategy.LEAST_ALLOCATED: ScoringType.LEAST_ALLOCATED,
    NumaAllocateStrategy.DISTRIBUTE_EVENLY: ScoringType.LEAST_ALLOCATED,  # it has no score of its own: the emptiest first
}


class CpuBinding(ValueObject, gc=False):
    """
    The binding of exclusive CPUs: shape, whether the shape is required, and exclusive policy.

    ``downgrade`` is the treatment of a NUMANodeLevel that cannot be honored. ``isolated`` are the CPUs that the pod
    prefers.
    """

    policy: CpuBindPolicy
    required: bool = False
    exclusive: CpuExclusivePolicy = CpuExclusivePolicy.NONE
    downgrade: Downgrade = Downgrade.TO_PCPU_LEVEL
    isolated: CpuSet = EMPTY

    @property
    def demanded(self) -> CpuBindPolicy:
        """Return the required shape, ``NONE`` if it is only preferred."""
        return self.policy if self.required else NO_BIND_POLICY


@value_object
class NodeRules:
    """
    The rules for a pod on a node, after the demands of the pod, the rules of the node and the defaults are resolved.

    ``amounts`` are the amounts to place on NUMA nodes. ``ratio`` is the node's CPU amplification: exclusive CPUs are
    recorded unamplified, but weigh ``ratio`` times as much. ``scoring`` ranks equally wide sets of NUMA nodes.
    ``restricted`` defines which sets Restricted prefers. ``exclusive`` is the exclusivity of NUMA nodes. ``note`` is
    the reason why no NUMA policy is in force, if none is.
    """

    amounts: ResourceList
    binding: CpuBinding | None = None
    policy: NumaPolicy = NumaPolicy.NONE
    strategy: NumaAllocateStrategy = NumaAllocateStrategy.LEAST_ALLOCATED
    scoring: Strategy | None = None
    accounting: Accounting = Accounting.EVERY_POD
    ratio: float = 1
    restricted: RestrictedRule = RestrictedRule.EMPTY_NODE
    exclusive: NumaExclusive = NumaExclusive.NONE
    note: str = ""
    scored: Counted = field(init=False, repr=False, compare=False)  # inputs of the score of a set

    def __post_init__(self) -> None:
        object.__setattr__(self, "scored", () if self.scoring is None else self.scoring.counted(self.weighed))

    @property
    def cpus(self) -> int:
        """Return the number of exclusive CPUs of the pod."""
        return self.amounts.get(CPU, 0) // MILLI if self.binding else 0

    @property
    def weighed(self) -> ResourceList:
        """Return the amounts with exclusive CPUs amplified, as used in scores."""
        if self.binding is None or self.ratio <= 1:
            return self.amounts
        return {**self.amounts, CPU: amplify(self.amounts[CPU], self.ratio)}


def node_rules(demand: AllocationDemand, node: NodeTraits) -> NodeRules | Rejection:
    """Return the rules for this pod on this node, or a rejection. Evicting pods cannot resolve such a rejection."""
    # As Koordinator's FilterByNUMANode: two explicit policies that differ exclude each other.
    if NumaPolicy.NONE not in (demand.numa, node.policy) and demand.numa is not node.policy:
        return _refuse(Reason.NUMA_POLICY, POLICY_MISMATCH, f"the pod wants {demand.numa}, the node has {node.policy}")
    # The kubelet's rejection comes first: it is independent of the binding.
    binding = _smt_refusal(demand, node) or _binding(demand, node)
    if isinstance(binding, Rejection):
        return binding
    policy = _policy(demand, node, binding)
    if isinstance(policy, Rejection):
        return policy
    return NodeRules(
        amounts=demand.amounts,
        binding=binding,
        policy=policy,
        strategy=_strategy(demand, node) or demand.options.strategy,
        scoring=_scoring(_strategy(demand, node), demand.options.scoring),
        accounting=demand.options.accounting,
        ratio=node.ratio,
        restricted=demand.options.restricted,
        exclusive=demand.numa_exclusive,
        note=_note(demand, node, binding) if policy is NumaPolicy.NONE else "",
    )


def _binding(demand: AllocationDemand, node: NodeTraits) -> CpuBinding | Rejection | None:
    """
    Return the binding of exclusive CPUs: for the pod's policy, a static kubelet, or a node that binds every pod.

    ``None`` for a pod on shared CPUs.
    """
    imposed = _IMPOSED.get(node.bind)
    if demand.use is CpuUse.POOL_OF_ONE_NUMA:
        # ``imposed`` needs a CPU request: a pod without one has nothing to bind.
        if imposed and demand.cpu:
            return _refuse(Reason.BIND_POLICY, BIND_CONFLICT, f"the node binds CPUs ({imposed}), the pod shares a pool")
        return None if node.machine else _no_machine(node)
    if not _wants_own(demand, node):
        return None
    # CPUs allocated by claim (the dra.cpu driver) are not pinned: two allocators could allocate the same CPU.
    if node.cpus_by_claim:
        return _not_by_claim(demand, node)
    if not demand.has_whole_cpus:
        return NOT_WHOLE
    if node.machine is None:
        return _no_machine(node)
    if imposed is CpuBindPolicy.FULL_PCPUS and (refusal := _full_cores_only(demand, node.machine)):
        return refusal
    wanted = demand.required
    if imposed and wanted not in (CpuBindPolicy.NONE, imposed):
        return _refuse(Reason.BIND_POLICY, BIND_CONFLICT, f"the node imposes {imposed}, the pod requires {wanted}")
    # The node's label is at least as strict as the pod's requirement, and equal to it after the check above.
    required = imposed or wanted
    isolated = node.isolated if demand.isolated else EMPTY
    if required is CpuBindPolicy.NONE:
        # Other preferences define no shape. FullPCPUs is Koordinator's default bind policy.
        chosen = demand.preferred if demand.preferred in _IMPOSED.values() else CpuBindPolicy.FULL_PCPUS
        return CpuBinding(chosen, exclusive=demand.cpu_exclusive, isolated=isolated)
    binding = CpuBinding(required, required=True, exclusive=demand.cpu_exclusive, isolated=isolated)
    return _whole_cores(demand, node, binding)


def _full_cores_only(demand: AllocationDemand, machine: CpuTopology) -> Rejection | None:
    """
    Return a rejection if a node with the bind policy FullPCPUsOnly does not accept the pod, else ``None``.

    Such nodes accept Guaranteed, LSE and LSR pods that do not prefer SpreadByPCPUs (fine-grained CPU orchestration, "Filter phase" and
    "Resource spec").
    """
    if not demand.may_bind_cores:
        return _refuse(Reason.BIND_POLICY, FULL_CORES_ONLY, f"the pod is not among them: {demand.why_shared}")
    # Without SMT, spread CPUs and full cores are the same, so there is no conflict.
    if demand.prefers_spread and machine.threads_per_core > 1:
        return _refuse(
            Reason.BIND_POLICY, BIND_CONFLICT, "the node allocates full cores, the pod prefers SpreadByPCPUs"
        )
    return None


def _smt_refusal(demand: AllocationDemand, node: NodeTraits) -> Rejection | None:
    """Return a rejection if full-pcpus-only of a static kubelet fails: a pinned *container* would split a core (SMTAlignmentError)."""
    threads = node.machine.threads_per_core if node.machine else 0
    if not node.kubelet_whole_cores or not threads:
        return None
    # Per container, as in the kubelet: the sum of two odd containers may be even.
    broken = [cpus for cpus in demand.pinned if cpus % threads]
    if not broken:
        return None
    return _refuse(
        Reason.KUBELET_SMT,
        BROKEN_CORE,
        f"a container of {cpus_text(broken[0])} does not fill whole cores of {threads} CPUs, so the kubelet rejects it",
    )


def _not_by_claim(demand: AllocationDemand, node: NodeTraits) -> Rejection | None:
    """Return a rejection if the pod cannot get exclusive CPUs by claim. The allocation of its claims checks their CPUs."""
    if _is_pinned(demand, node):  # dra-driver-cpu needs the CPU manager policy none
        return _refuse(Reason.BIND_POLICY, CPUS_BY_CLAIM, "and whose kubelet would pin the pod to other ones")
    return None if demand.claims else NO_CPUS_WITHOUT_CLAIM


def own_cpus_by_claim(demand: AllocationDemand, node: NodeTraits) -> bool:
    """Return whether the claims of the pod must provide its exclusive CPUs on this node. No cpuset is then chosen for it."""
    return demand.claims and node.cpus_by_claim and _wants_own(demand, node)


def _wants_own(demand: AllocationDemand, node: NodeTraits) -> bool:
    imposed = node.bind in _IMPOSED and demand.cpu > 0
    return demand.use is CpuUse.OWN or imposed or _is_pinned(demand, node)


def _is_pinned(demand: AllocationDemand, node: NodeTraits) -> bool:
    return node.static_kubelet and demand.pinnable


def _whole_cores(demand: AllocationDemand, node: NodeTraits, binding: CpuBinding) -> CpuBinding | Rejection:
    """Check SMT alignment as the kubelet's full-pcpus-only. Return the binding or a rejection."""
    threads = node.machine.threads_per_core if node.machine else 0
    cpus = NodeRules(demand.amounts, binding).cpus
    if binding.policy is CpuBindPolicy.FULL_PCPUS and threads and cpus % threads:
        return _refuse(
            Reason.CPU_COUNT,
            BROKEN_CORE,
            f"{cpus_text(cpus)} {'does' if cpus == 1 else 'do'} not fill whole cores of {threads} CPUs",
        )
    return binding


def _policy(demand: AllocationDemand, node: NodeTraits, binding: CpuBinding | None) -> NumaPolicy | Rejection:
    """Return the effective policy: the pod's, else the node's, else the default."""
    stated = demand.numa if demand.numa is not NumaPolicy.NONE else node.policy
    policy = _unstated(demand, node, binding) if stated is NumaPolicy.NONE else stated
    # Pods can only be spread over NUMA nodes that are chosen for them.
    if policy is NumaPolicy.NONE and demand.spread is not None and node.has_zones:
        policy = NumaPolicy.BEST_EFFORT
    # With zones any policy can be evaluated. Without zones, the result depends on the source of the policy.
    if policy is NumaPolicy.NONE or node.has_zones:
        return policy
    # A default never causes a rejection. An explicit policy does, unless the operator permits it.
    if stated is NumaPolicy.NONE or demand.options.without_topology is WithoutTopology.PERMIT:
        return NumaPolicy.NONE
    # An unusable topology and a missing topology need different repairs, so they have different reasons.
    reason = Reason.BAD_TOPOLOGY if node.problem else Reason.NO_TOPOLOGY
    gap = node.gap or "no NodeResourceTopology describes its NUMA nodes"
    return _refuse(reason, NO_NUMA_DATA, node.problem or f"{gap}, which {stated} needs")


def _unstated(demand: AllocationDemand, node: NodeTraits, binding: CpuBinding | None) -> NumaPolicy:
    """
    Return the configured default, only for pods with exclusive CPUs.

    Aligning other pods would restrict them to the pool of a NUMA node without need. A node labeled DistributeEvenly has
    the opposite goal. For a node whose kubelet distributes CPUs across NUMA nodes if one is not enough, BestEffort is
    equivalent.
    """
    if (
        (binding is None and not own_cpus_by_claim(demand, node))
        or node.never_aligned
        or _strategy(demand, node) is NumaAllocateStrategy.DISTRIBUTE_EVENLY
    ):
        return NumaPolicy.NONE
    default = demand.options.numa_policy
    # Distribution by the kubelet needs accounting by NUMA node, which ``None`` would skip.
    return NumaPolicy.BEST_EFFORT if node.spans_evenly and default is NumaPolicy.NONE else default


def _strategy(demand: AllocationDemand, node: NodeTraits) -> NumaAllocateStrategy | None:
    """Return the strategy of the node's label, else of the pod's annotation, else ``None``."""
    return node.strategy or demand.strategy


def _scoring(strategy: NumaAllocateStrategy | None, configured: Strategy | None) -> Strategy | None:
    """Return the scoring with the strategy of node or pod, which defines the NUMA node to fill first. Upstream only orders CPUs."""
    # A strategy of a label or annotation replaces the configured type but keeps its weights.
    if configured is None or strategy is None:
        return configured
    return replace(configured, type=_FILLING[strategy])


def _note(demand: AllocationDemand, node: NodeTraits, binding: CpuBinding | None) -> str:
    if not node.has_zones and (node.policy, demand.numa) != (NumaPolicy.NONE, NumaPolicy.NONE):
        return "no NUMA alignment was attempted: the node publishes no NUMA data"
    if binding is not None:
        why = "the node publishes no NUMA data" if not node.has_zones else "none is configured"
        if _strategy(demand, node) is NumaAllocateStrategy.DISTRIBUTE_EVENLY:
            why = "the CPUs are distributed evenly"
        return f"no NUMA alignment was attempted: neither pod nor node names a NUMA policy, and {why}"
    why = "its CPUs come by claim" if own_cpus_by_claim(demand, node) else demand.why_shared
    return f"no NUMA alignment was attempted: neither pod nor node names a NUMA policy, and {why}"


def _no_machine(node: NodeTraits) -> Rejection:
    reason = Reason.BAD_TOPOLOGY if node.problem else Reason.NO_TOPOLOGY
    detail = f"{node.gap} and no CPUs" if node.gap else "no NodeResourceTopology describes its CPUs"
    return _refuse(reason, NO_CPU_TOPOLOGY, node.problem or detail)


def _refuse(reason: Reason, message: str, detail: str) -> Rejection:
    return Rejection(reason, message, detail, resolvable=False)
