"""
A scheduler's conclusion: would this kubelet admit this pod now, and what would the pod then hold?

Asks the kubelet's own procedure on the state that a view supposes, after the careful rules for what is not published. A "yes" must
hold; a "no" may be wrong, and says which assumption decided.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import attrgetter, or_
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.explain import cpus_text
from koord_numa.core.kubelet.admit import DryRunAdmitted, NotAdmitted, dry_run
from koord_numa.core.kubelet.budget import DECISION, TooManyWays, limited
from koord_numa.core.kubelet.demand import PodDemand, pod_demand
from koord_numa.core.kubelet.departures.less_room import is_confined
from koord_numa.core.kubelet.enough_room import unclear_devices
from koord_numa.core.kubelet.in_flight import PodsInFlight
from koord_numa.core.kubelet.inference.hypothesis import pins_init_cpus
from koord_numa.core.kubelet.inference.probes import Question, fits_in_every_state
from koord_numa.core.kubelet.lower_places import lower_places
from koord_numa.core.kubelet.options import THREADS
from koord_numa.core.kubelet.refusals import CANNOT_ALIGN, CANNOT_ALLOCATE, NO_WHOLE_CORES, rejection_of
from koord_numa.core.kubelet.spreading.shares import answer
from koord_numa.core.kubelet.state import Charge, Grant, KubeletAdmission, KubeletNode, KubeletState, ManagerState
from koord_numa.core.kubelet.unsupported_policies import lost_to_sockets
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeletPolicy
from koord_numa.core.resources import CPU, MILLI, total
from koord_numa.core.value_objects import ValueObject

UNEXPLAINED: Final = "the pods known to be there do not explain where memory is in use"
TOO_MANY: Final = (
    "pods may have left from too many places to try them all, until a topology or the kubelet's verdicts tell"
)
IN_FLIGHT: Final = "pods bound to this node may be on other NUMA nodes than foreseen, until their kubelet has admitted or rejected them"
NOTHING_KNOWN: Final = "node(s) without usable NUMA topology"

_BOUND_TO: Final = attrgetter("mask")


def would_admit(request: PodRequest, view: KubeletView) -> KubeletAdmission | Rejection:
    """
    Whether the kubelet of this node would admit the pod, as far as a scheduler can tell.

    A yes holds in every state that the view says is possible (``probes``). The reasons are those of the kubelet's ``status.reason``:
    alignment (TopologyAffinityError), whole cores (SMTAlignmentError), allocation (UnexpectedAdmissionError), and node-wide amounts
    (OutOf…). Where only an option that is unlikely, or that is not published, speaks against the pod, the admission names it in
    ``explores``: its answer would tell.
    """
    demand = pod_demand(request)
    if problem := view.problem_with(request):
        return Rejection(Reason.NO_TOPOLOGY, NOTHING_KNOWN, problem, resolvable=False)
    doubts: _Doubts | None = None
    if (spoiled := split_cores(demand, view)) is not None:
        # The unlikely option, or the count of free cores, speaks against it: both are assumptions that the answer would settle.
        if not view.cores.option or (view.cores.option == THREADS and spoiled.resolvable):
            return spoiled
        doubts = _Doubts([view.cores.option], [spoiled])
    if (unclear := _unclear_places(request, demand, view)) is not None:
        return unclear
    if view.is_settled and len(demand.containers) == 1:  # nothing is taken over, and no pod could go
        return _in_one_state(request, view, doubts)
    try:
        with limited(DECISION):
            return _in_all_states(request, view, doubts)
    except PodsInFlight:
        return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, IN_FLIGHT)
    except TooManyWays:
        return _by_bound(request, view, doubts)


def _in_one_state(request: PodRequest, view: KubeletView, doubts: "_Doubts | None") -> KubeletAdmission | Rejection:
    state, demand = view.state, pod_demand(request)
    verdict = dry_run(state, request, view.hypotheses[0].trust)
    if isinstance(verdict, NotAdmitted):
        return rejection_of(request, verdict, view, state)
    places = _places(verdict.grant, state.node)
    return _admission(demand, verdict, view, _Places([reduce(or_, places, 0)], places, state), doubts)


def _in_all_states(request: PodRequest, view: KubeletView, doubts: "_Doubts | None") -> KubeletAdmission | Rejection:
    demand = pod_demand(request)
    first: tuple[DryRunAdmitted, KubeletState, list[int]] | None = None
    masks: list[int] = []
    question = Question(request, view)
    for probe in question.probes():
        verdict = answer(probe.state, request, probe.trust, probe.reuse, probe.shares)
        if isinstance(verdict, NotAdmitted):
            # A refusal in a state without unlikely options is final; one under such options only makes the pod explore them.
            if not probe.options or first is None:
                return rejection_of(request, verdict, view, probe.state)
            doubts = doubts or _Doubts()
            doubts.add(probe.options, rejection_of(request, verdict, view, probe.state))
            continue
        places = _places(verdict.grant, probe.state.node)
        first = first or (verdict, probe.state, places)
        masks.append(reduce(or_, places, 0))
    if first is None:
        raise AssertionError("a view has at least one state")
    masks.append(question.elsewhere or masks[0])
    verdict, before, places = first
    unsure = refuse_confined_below(demand, verdict.grant, view)
    return unsure or _admission(demand, verdict, view, _Places(masks, places, before), doubts)


def _by_bound(request: PodRequest, view: KubeletView, doubts: "_Doubts | None") -> KubeletAdmission | Rejection:
    """Answer where not every state could be tried: the pod is admitted if amounts tell that it fits in each; else it waits."""
    state = view.state
    verdict = dry_run(state, request, view.hypotheses[0].trust)
    if isinstance(verdict, NotAdmitted) or not (view.followed and fits_in_every_state(request, view)):
        return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, TOO_MANY)
    places = _places(verdict.grant, state.node)
    masks = [reduce(or_, places, 0), state.node.machine.numa_mask]
    return _admission(pod_demand(request), verdict, view, _Places(masks, places, state), doubts)


@dataclass(slots=True)
class _Doubts:
    """``options`` are those on which the admission depends, ``refusals`` what the kubelet says if they are on."""

    options: list[str] = field(default_factory=list)
    refusals: list[Rejection] = field(default_factory=list)

    def add(self, options: Sequence[str], refusal: Rejection) -> None:
        """The kubelet refuses the pod under these options, if there are any."""
        self.options += [option for option in options if option not in self.options]
        self.refusals += [refusal] if options else []

    @property
    def lacks(self) -> Rejection | None:
        """The first refusal, if evictions may help against each."""
        if not all(refusal.resolvable for refusal in self.refusals):
            return None
        return self.refusals[0] if self.refusals else None


def split_cores(demand: PodDemand, view: KubeletView) -> Rejection | None:
    """Why the pod breaks the most careful rule about whole cores; ``None`` when it keeps it, or where none has to be kept."""
    counts, rule = demand.counts, view.cores
    if rule.free is None:
        return None
    odd = [count for count in counts if count % rule.threads]
    if odd:
        verb = "is" if odd[0] == 1 else "are"
        detail = f"{cpus_text(odd[0])} {verb} not a multiple of {rule.threads}; {rule.why}"
        return Rejection(Reason.KUBELET_SMT, NO_WHOLE_CORES, detail, resolvable=False)
    # Without threads to spoil, the sum says more than the count of free CPUs only where CPUs are used twice.
    if sum(counts) > rule.free and (rule.threads > 1 or pins_init_cpus(demand, view.state.node)):
        detail = f"{cpus_text(sum(counts))} needed, {rule.free} surely free on whole cores; {rule.why}"
        return Rejection(Reason.KUBELET_SMT, NO_WHOLE_CORES, detail)
    return None


def _unclear_places(request: PodRequest, demand: PodDemand, view: KubeletView) -> Rejection | None:
    """
    What is not published: where memory is in use, and what later containers must stay near (sockets, an init container's device).

    A device near several NUMA nodes ties them: which one it gets is not known (generateDeviceTopologyHints in topology_hints.go).
    """
    node = view.state.node
    # Unexplained use may be a group of NUMA nodes, which a new block would join or be refused for.
    if demand.pod.memory and view.state.managers.memory is not None and not view.groups_known:
        return Rejection(Reason.KUBELET_ALLOCATION, CANNOT_ALLOCATE, UNEXPLAINED)
    if detail := lost_to_sockets(demand, view):
        return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, detail)
    if node.ids_are_real:
        return None
    detail = unclear_devices(request, view.rooms) if view.followed else _unknown_init_devices(demand, node)
    return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, detail) if detail else None


def _unknown_init_devices(demand: PodDemand, node: KubeletNode) -> str:
    """Of which shared devices init containers get some on a node of which only amounts are known, in words; empty where there are none."""
    for container, part in demand.containers if is_confined(demand, node) else ():
        for name, count in part.devices.items() if container.kind is ContainerKind.INIT else ():
            pool = node.devices.get(name)
            if count and pool is not None and any(device.near.bit_count() > 1 for device in pool.devices):
                return f"container {container.name}: which {name} it gets, and near which NUMA nodes that is, is not published"
    return ""


def refuse_confined_below(demand: PodDemand, grant: Grant, view: KubeletView) -> Rejection | None:
    """
    On a node that is not followed any pod may have left unseen, wherever it was: should its room take the init container to a lower NUMA
    node than foreseen, the containers that are tied to that one may not find room there.
    """
    if not view.unfollowed or len(demand.containers) < 2 or not is_confined(demand, view.state.node):
        return None
    below = lower_places(demand, grant, view.state)
    if not below:
        return None
    detail = f"an init container might go to NUMA node {below[0]}, if a pod has left there unseen, without room for the others"
    return Rejection(Reason.KUBELET_ALIGNMENT, CANNOT_ALIGN, detail)


class _Places(ValueObject):
    """
    The ``masks`` that a pod has in all states that are possible, the first of which is ``before``; ``first`` is one for each thing that it
    is given there.
    """

    masks: Sequence[int]
    first: Sequence[int]
    before: KubeletState

    @property
    def is_certain(self) -> bool:
        """Is it the same NUMA node everywhere?"""
        return self.masks.count(self.masks[0]) == len(self.masks) and {*map(int.bit_count, self.first)} <= {1}

    @property
    def union(self) -> int:
        """Every NUMA node on which it may be."""
        return reduce(or_, self.masks, 0)


def _admission(
    demand: PodDemand, verdict: DryRunAdmitted, view: KubeletView, places: _Places, doubts: _Doubts | None
) -> KubeletAdmission:
    node, exact = view.state.node, view.state.node.ids_are_real
    # Of the state that was asked, which may have more free than the likeliest: the difference to any other is not the pod's.
    before = places.before
    holds = [
        (numa, amounts)
        for numa in node.machine.numa_ids
        if (amounts := _taken(before.node, before.managers, verdict.managers, numa))
    ]
    certain = places.is_certain
    mask = places.masks[0] if certain else places.union
    if not certain and not exact:
        # Which NUMA node it will be is open: the whole amount is charged on each, as a yes must hold in all cases.
        whole = total(amounts for _, amounts in holds)
        holds = [(numa, whole) for numa in node.machine.numa_ids if mask >> numa & 1 and whole]
    return KubeletAdmission(
        numa=tuple(holds),
        charge=Charge.PREDICTED if certain or exact else Charge.EVERYWHERE,
        mask=mask if holds else None,
        cpus=_cpus(verdict.grant) if exact else EMPTY,
        note="" if exact else _note(demand, view, certain=certain),
        explores=() if doubts is None else tuple(doubts.options),
        lacks=None if doubts is None else doubts.lacks,
    )


def _taken(node: KubeletNode, before: ManagerState, after: ManagerState, numa: int) -> dict[str, int]:
    """What one NUMA node has free in the first managers and not in the second, in our units."""
    less = {}
    for name, pool in node.devices.items() if node.devices else ():
        if before.devices[name] != after.devices[name]:
            here = pool.near(1 << numa) & pool.healthy
            less[name] = (here & ~before.devices[name]).bit_count() - (here & ~after.devices[name]).bit_count()
    if node.pins_cpus and (before.cpus ^ after.cpus) & (here := node.machine.numa_bits[numa]):
        less[CPU] = MILLI * ((before.cpus & here).bit_count() - (after.cpus & here).bit_count())
    if before.memory is not None and after.memory is not None:
        had, left = before.memory.free[numa], after.memory.free[numa]
        # By identity: the table shares the amounts of NUMA nodes of which nothing was taken.
        if had is not left:
            for kind, amount in had.items():
                less[kind] = amount - left[kind]
    return {name: amount for name, amount in less.items() if amount} if less else less


def _cpus(grant: Grant) -> CpuSet:
    cpus = EMPTY
    for container in grant.containers:
        cpus |= container.cpus
    return cpus


def _places(grant: Grant, node: KubeletNode) -> list[int]:
    """For everything that is tied to NUMA nodes, the mask it may be on."""
    everywhere, found = node.machine.numa_mask, []
    for container in grant.containers:
        hint = container.hint.mask if container.hint is not None and container.hint.preferred else None
        # A hint that is not preferred may be too narrow, and the rest then comes from anywhere.
        aligned = everywhere if hint is None else hint
        if container.cpus:
            found.append(aligned)
        found += map(_BOUND_TO, container.memory)
        for resource, ids in container.devices.items() if container.devices else ():
            pool = node.devices[resource]
            near = [device.near for device in pool.devices if device.id in ids and device.near]
            found += [aligned | mask if mask.bit_count() > 1 else aligned for mask in near]
    return found


def _note(demand: PodDemand, view: KubeletView, *, certain: bool) -> str:
    """The assumptions that this yes rests on."""
    notes = []
    if demand.counts and view.cores.threads > 1:
        notes.append(view.cores.why)
    policy = view.state.node.config.topology_policy
    if demand.pod.memory and view.state.managers.memory is not None and policy is not KubeletPolicy.SINGLE_NUMA_NODE:
        notes.append("memory is taken to be grouped as the pods on the node suggest")
    if not certain:
        notes.append("several NUMA nodes are possible, so the pod is counted on each")
    return "; ".join(notes)
