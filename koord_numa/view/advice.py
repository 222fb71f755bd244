"""Advice for a waiting pod: the smallest changes that make the pod fit."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from itertools import zip_longest
from typing import Final

from koord_numa.core.cpuset import CpuSet
from koord_numa.core.devices import COUNTED_DEVICES, NO_OBJECT, TYPE_OF, UNUSABLE
from koord_numa.core.explain import DROPPED, amounts_text, bare_amount, closest_nodes, cpus_text
from koord_numa.core.fit.node_filters import CORDONED, fits_node_affinity, fits_node_name, fits_taints
from koord_numa.core.kubelet import KubeletView
from koord_numa.core.objects.constraints import Toleration
from koord_numa.core.objects.devices import DeviceExclusive, DeviceHint, PartitionPolicy, PartitionSpec, TopologyScope
from koord_numa.core.objects.node import KubeletConfig, Node, NodeResourceTopology
from koord_numa.core.objects.request import Container, Pod, PodRequest
from koord_numa.core.objects.verdicts import Placement, Reason, Rejection
from koord_numa.core.objects.vocabulary import (
    ContainerKind,
    CpuBindPolicy,
    CpuExclusivePolicy,
    CpuOwner,
    KubeletPolicy,
    KubeletScope,
    NumaExclusive,
    NumaPolicy,
)
from koord_numa.core.pod_resources import effective_requests, may_use_cpuset
from koord_numa.core.preempt.dry_run import DryRun, PreemptionNode, answer_of
from koord_numa.core.rebind.layout import NodeLayout
from koord_numa.core.rebind.plan import RebindPlan, plan_rebind
from koord_numa.core.resources import CPU, MEMORY, MILLI, ResourceList
from koord_numa.core.scheduling.filters import ScoredPlacement
from koord_numa.core.state.inventory import Inventory
from koord_numa.core.state.ledger import Ledger
from koord_numa.core.value_objects import ValueObject, replace
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.engine.rebind import layout_of_node
from koord_numa.engine.scheduler import Scheduler
from koord_numa.view.text import short_amounts
from koord_numa.wire import is_near, plain


class Remedy(ValueObject):
    """
    A change that makes the pod fit on ``node``, verified by the rules of the scheduler.

    ``kind`` is ``size``, ``policy``, ``kubelet``, ``node``, ``leaves``, ``eviction``, ``rebind`` or ``repair``. A
    ``repair`` is a prerequisite for the evaluation of the node. It is the only kind that is not verified.
    """

    kind: str
    node: str
    text: str


class Probe(ValueObject):
    """A waiting pod, the rejection of every node, and the names of the closest nodes."""

    scheduler: Scheduler
    pod: Pod
    rejections: Mapping[str, Rejection]
    closest: tuple[str, ...]

    def fits(self, request: PodRequest, node: str) -> Placement | None:
        """Return the placement that a pod with the request would get on the node now, or None."""
        pod = replace(self.pod, request=request)
        request_class = self.scheduler.classes.of(pod)
        if request_class is None:
            return None
        answer = self.scheduler.handle.selector.try_node(request_class, node, pod)
        return answer if isinstance(answer, Placement) else None

    def may_use(self, node: str) -> bool:
        """Return whether name, labels and taints of the node permit the pod. A cordon is ignored."""
        info = self.scheduler.cache.nodes.get(node)
        if info is None or info.node is None:
            return False
        request = self.pod.request
        open_node = replace(info.node, taints=tuple(taint for taint in info.node.taints if taint.key != CORDONED.key))
        refused = (
            fits_node_name(request, info.node)
            or fits_node_affinity(request, info.node)
            or fits_taints(request, open_node)
        )
        return refused is None

    def fits_on_one(self, request: PodRequest) -> Placement | None:
        """Return the placement on the first of the closest nodes that fits a pod with the request, or None."""
        return next((found for node in self.closest if (found := self.fits(request, node)) is not None), None)


def where(placement: Placement) -> str:
    """Return a placement as text: ``worker-1, NUMA 0``."""
    numa = [numa for numa, _ in placement.numa] or list(CpuSet(placement.mask or 0))
    return f"{placement.node}, NUMA {','.join(map(str, numa))}" if numa else placement.node


def departures(probe: Probe) -> Iterator[Remedy]:
    """
    Yield a node that becomes free when terminating pods end, otherwise the least important single pod whose removal
    suffices.
    """
    sites = [site for name in probe.closest if (site := _site(probe, name)) is not None]
    for site in sites:
        leaving = [uid for uid, pod in site.pods.items() if pod.deleting]
        placement = _without(probe, site, leaving) if leaving else None
        if placement is not None:
            names = ", ".join(str(site.pods[uid].key) for uid in leaving[:3])
            yield Remedy(
                "leaves", placement.node, f"it fits on {where(placement)} once {names}, which terminates, is gone"
            )
            return
    candidates = sorted(((pod, site) for site in sites for pod in site.pods.values()), key=_least_important)
    for pod, site in candidates:
        placement = _without(probe, site, [pod.key.uid])
        if placement is not None:
            text = f"it fits on {where(placement)} if {pod.key} (priority {pod.request.priority}) leaves"
            yield Remedy("eviction", placement.node, text)
            return


def _site(probe: Probe, name: str) -> PreemptionNode | None:
    info = probe.scheduler.cache.nodes.get(name)
    if info is None:
        return None
    assumed = frozenset(uid for uid in info.pods if uid in probe.scheduler.cache.assumed)
    site = info.site_for(probe.pod, assumed)
    return site if site is not None and site.trusted else None


def _without(probe: Probe, site: PreemptionNode, uids: list[str]) -> Placement | None:
    """Return the placement without the given pods and the devices of their claims, by preemption's dry run."""
    request_class = probe.scheduler.classes.of(probe.pod)
    if request_class is None:
        return None
    selector, planner = probe.scheduler.handle.selector, probe.scheduler.preemption.evaluator
    trial = DryRun(selector.request_now(request_class), site, planner.terms(probe.pod, request_class))
    if not all(trial.is_movable(uid) for uid in uids):
        return None
    trial.send_away(uids)
    return trial.answer()


def _least_important(entry: tuple[Pod, PreemptionNode]) -> tuple[int, float, str]:
    """Return the sort key of victims, as in preemption: by priority, then the youngest first."""
    pod, _ = entry
    return (pod.request.priority, -pod.created, str(pod.key))


NODES: Final = 2
"""Maximum number of evaluated nodes. A node costs up to seven predictions of its kubelet."""

_FROM_STRICT: Final = (
    KubeletPolicy.SINGLE_NUMA_NODE,
    KubeletPolicy.RESTRICTED,
    KubeletPolicy.BEST_EFFORT,
    KubeletPolicy.NONE,
)


_LAXER: Final = (NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED, NumaPolicy.BEST_EFFORT)


def kubelet_settings(probe: Probe) -> Iterator[Remedy]:
    """Yield the smallest change of one node's kubelet that makes the pod fit: its scope, then its policy, then both."""
    tried = 0
    for name in probe.closest:
        info = probe.scheduler.cache.nodes.get(name)
        if info is None or info.current is None or not probe.may_use(name) or not _is_kubelets(info):
            continue
        if tried == NODES:
            return
        tried += 1
        for config in _laxer(info.current.kubelet):
            placement = _fits(probe, info, info.node, replace(info.current, kubelet=config))
            if placement is not None:
                change = _change(info.current.kubelet, config)
                text = f"if the kubelet of {name} had {change}, it fits on {where(placement)}"
                yield Remedy("kubelet", name, text)
                return


def node_policies(probe: Probe) -> Iterator[Remedy]:
    """
    Yield the smallest relaxation of one node's NUMA policy that makes the pod fit, on nodes where the scheduler chooses
    CPUs.
    """
    tried = 0
    for name in probe.closest:
        info = probe.scheduler.cache.nodes.get(name)
        seen = None if info is None else info.candidate()
        if seen is None or info is None or info.node is None or info.current is None or not probe.may_use(name):
            continue
        policy = seen.offer.policy if isinstance(seen.offer, Inventory) else NumaPolicy.NONE
        if policy not in _LAXER:
            continue
        if tried == NODES:
            return
        tried += 1
        for laxer in _LAXER[_LAXER.index(policy) + 1 :]:
            node, topology = replace(info.node, numa_policy=laxer), replace(info.current, numa_policy=laxer)
            placement = _fits(probe, info, node, topology)
            if placement is not None:
                text = f"if {name} had the NUMA policy {laxer} instead of {policy}, it fits on {where(placement)}"
                yield Remedy("policy", name, text)
                return


def _is_kubelets(info: NodeInfo) -> bool:
    seen = info.candidate()
    return seen is not None and isinstance(seen.offer, KubeletView)


def _laxer(config: KubeletConfig) -> Iterator[KubeletConfig]:
    policy = config.topology_policy
    if policy is None or policy is KubeletPolicy.NONE:
        return
    other = KubeletScope.POD if config.topology_scope is KubeletScope.CONTAINER else KubeletScope.CONTAINER
    yield replace(config, topology_scope=other)
    for laxer in _FROM_STRICT[_FROM_STRICT.index(policy) + 1 :]:
        yield replace(config, topology_policy=laxer)
        if laxer is not KubeletPolicy.NONE:
            yield replace(config, topology_policy=laxer, topology_scope=other)


def _change(before: KubeletConfig, after: KubeletConfig) -> str:
    parts = []
    if after.topology_policy is not before.topology_policy:
        parts.append(f"topologyManagerPolicy {after.topology_policy} instead of {before.topology_policy}")
    if after.topology_scope is not before.topology_scope:
        parts.append(f"topologyManagerScope {after.topology_scope} instead of {before.topology_scope}")
    return " and ".join(parts)


def _fits(probe: Probe, info: NodeInfo, node: Node | None, topology: NodeResourceTopology) -> Placement | None:
    """Return the placement on a copy of the node with the given objects and the same pods, or None."""
    request_class = probe.scheduler.classes.of(probe.pod)
    if request_class is None:
        return None
    trial = NodeInfo(info.name, headroom=info.headroom, device_inventory=info.device_inventory)
    trial.set_objects(node, topology)
    for uid, pod in info.pods.items():
        trial.count(pod, info.ledger.holdings[uid])
        if uid in info.unpublished:
            trial.unreported.add(replace(pod, started=False), 0.0)
    seen = trial.candidate()
    if seen is None:
        return None
    selector = probe.scheduler.handle.selector
    answer = answer_of(selector.request_now(request_class), seen, selector.profile_of(request_class))
    if not isinstance(answer, ScoredPlacement):
        return None
    found = selector.devices_at(request_class, seen, answer.placement)
    return found if isinstance(found, Placement) else None


def relaxed_policies(probe: Probe) -> Iterator[Remedy]:
    """Yield, for each policy of the pod, the smallest relaxation that alone makes the pod fit."""
    request = probe.pod.request
    for way in (numa_policies(request), bind_policies(request), _exclusivity(request), *_device_conditions(request)):
        for text, request in way:
            placement = probe.fits_on_one(request)
            if placement is not None:
                yield Remedy("policy", placement.node, f"{text} it fits on {where(placement)}")
                break


def numa_policies(request: PodRequest) -> Iterator[tuple[str, PodRequest]]:
    order = [NumaPolicy.SINGLE_NUMA_NODE, NumaPolicy.RESTRICTED, NumaPolicy.BEST_EFFORT, NumaPolicy.NONE]
    asked = request.numa.policy
    if asked is NumaPolicy.NONE:
        return
    for policy in order[order.index(asked) + 1 :]:
        spec = replace(request.numa, policy=policy)
        wording = (
            f"with numaTopologyPolicy {policy}" if policy is not NumaPolicy.NONE else "without a numaTopologyPolicy"
        )
        yield (
            f"{wording} instead of {asked}" if policy is not NumaPolicy.NONE else f"{wording} ({asked} now)",
            replace(request, numa=spec),
        )


def bind_policies(request: PodRequest) -> Iterator[tuple[str, PodRequest]]:
    required = request.bind.required
    if required in (CpuBindPolicy.NONE, CpuBindPolicy.DEFAULT):
        return
    bind = replace(request.bind, required=CpuBindPolicy.NONE, preferred=required)
    yield f"with {required} preferred instead of required", replace(request, bind=bind)


def _exclusivity(request: PodRequest) -> Iterator[tuple[str, PodRequest]]:
    if request.bind.exclusive is not CpuExclusivePolicy.NONE:
        bind = replace(request.bind, exclusive=CpuExclusivePolicy.NONE)
        yield f"without preferredCPUExclusivePolicy {request.bind.exclusive}", replace(request, bind=bind)
    if request.numa.policy is not NumaPolicy.NONE and request.numa.exclusive is not NumaExclusive.PREFERRED:
        spec = replace(request.numa, exclusive=NumaExclusive.PREFERRED)
        yield "with singleNUMANodeExclusive Preferred", replace(request, numa=spec)


_SCOPES: Final[Mapping[TopologyScope, str]] = {
    TopologyScope.DEVICE: "Device",
    TopologyScope.PCIE: "PCIe",
    TopologyScope.NUMA_NODE: "NUMANode",
}
"""Topology scopes, the strictest first. The scope of the whole node is no condition."""


def _device_conditions(request: PodRequest) -> Iterator[list[tuple[str, PodRequest]]]:
    """Yield the relaxations of each condition on devices by id, the smallest first."""
    spec = request.devices
    if spec.same_pcie:
        yield [("without requiredScope SamePCIe", replace(request, devices=replace(spec, same_pcie=False)))]
    if spec.partition is not None:
        ways: list[tuple[str, PartitionSpec | None]] = [("without gpu-partition-spec", None)]
        if spec.partition.bandwidth is not None:
            ways.insert(0, ("without ringBusBandwidth", replace(spec.partition, bandwidth=None)))
        if spec.partition.policy is PartitionPolicy.RESTRICTED:
            laxer = replace(spec.partition, policy=PartitionPolicy.BEST_EFFORT)
            ways.insert(0, ("with gpu-partition-spec BestEffort instead of Restricted", laxer))
        yield [(text, replace(request, devices=replace(spec, partition=partition))) for text, partition in ways]
    for kind, hint in spec.hints:
        for laxer_hints in _hint_conditions(kind, hint):
            yield [
                (text, replace(request, devices=replace(spec, hints=tuple({**dict(spec.hints), kind: laxer}.items()))))
                for text, laxer in laxer_hints
            ]


def _hint_conditions(kind: str, hint: DeviceHint) -> Iterator[list[tuple[str, DeviceHint]]]:
    if hint.scope is not None and (now := _SCOPES.get(hint.scope)) is not None:
        name = f"requiredTopologyScope of {kind}"
        laxer = [(scope, word) for scope, word in _SCOPES.items() if scope.value < hint.scope.value]
        ways = [(f"with {name} {word} instead of {now}", replace(hint, scope=scope)) for scope, word in laxer]
        yield [*ways, (f"without {name} ({now} now)", replace(hint, scope=None))]
    if hint.exclusive is not DeviceExclusive.NONE:
        open_hint = replace(hint, exclusive=DeviceExclusive.NONE)
        yield [(f"without exclusivePolicy {hint.exclusive.value} of {kind}", open_hint)]
    if hint.selector is not None:
        yield [(f"without the selector of {kind}", replace(hint, selector=None))]
    if hint.function_selector is not None:
        yield [(f"without the vfSelector of {kind}", replace(hint, function_selector=None))]


async def one_rebind(probe: Probe, planner: Callable[[NodeLayout], Awaitable[RebindPlan]]) -> Remedy | None:
    """Return the first of the closest nodes on which the pod fits after a rebind, or None."""
    planned = 0
    for name in probe.closest:
        layout = layout_of_node(probe.scheduler.cache, name, probe.scheduler.settings)
        if isinstance(layout, str):
            continue
        if planned == NODES:
            return None
        planned += 1
        plan = await planner(layout)
        remedy = _after(probe, name, plan) if plan else None
        if remedy is not None:
            return remedy
    return None


def _after(probe: Probe, name: str, plan: RebindPlan) -> Remedy | None:
    info, request_class = probe.scheduler.cache.nodes.get(name), probe.scheduler.classes.of(probe.pod)
    seen = None if info is None else info.candidate()
    if seen is None or request_class is None:
        return None
    ends = {move.pod.uid: move.after for move in plan.moves}
    holdings = [replace(held, cpus=ends.get(held.pod.uid, held.cpus)) for held in seen.ledger]
    selector = probe.scheduler.handle.selector
    after = replace(seen, ledger=Ledger.of(holdings))
    answer = answer_of(selector.request_now(request_class), after, selector.profile_of(request_class))
    if isinstance(answer, Rejection):
        return None
    placement = selector.devices_at(request_class, after, answer.placement)
    if isinstance(placement, Rejection):
        return None
    text = f"after `koord-numa rebind {name}` ({len(ends)} pods move) it fits on {where(placement)}"
    return Remedy("rebind", name, text)


ZONES_MISSING: Final = "publish the NUMA nodes of {node} as zones of its NodeResourceTopology: {detail}"
"""Repair for ``NO_TOPOLOGY`` on a node with a NodeResourceTopology."""

PERMISSIVE: Final = ", or set nodesWithoutTopology: Permissive"
"""Alternative repair for ``NO_TOPOLOGY``, which gives no pod exclusive CPUs."""

REPAIRS: Final[Mapping[Reason, str]] = {
    Reason.NO_TOPOLOGY: "publish a NodeResourceTopology for {node} (is its node agent running?)",
    Reason.BAD_TOPOLOGY: "repair the NodeResourceTopology of {node}: {detail}",
    Reason.BAD_NODE: "repair the Node object {node}: {detail}",
    Reason.BAD_POD: "repair the pod: {detail}",
    Reason.UNTRUSTED: "resolve the owner of the CPUs of {node}: {detail}",
    Reason.COOLING_DOWN: "wait: {node} is in back-off, because its kubelet rejected such a pod; its events have the reason",
    Reason.UNSCHEDULABLE: "kubectl uncordon {node}",
    Reason.LOCKED: "wait until the RebindResource on {node} has ended",
    Reason.VOLUME: "repair the pod's volumes: {detail}",
    Reason.UNSUPPORTED: "remove the unsupported field from the pod: {detail}",
}


def situations(probe: Probe) -> Iterator[Remedy]:
    """Yield outdated topologies, then one repair per reason, for the first node with the reason and its details."""
    yield from _lagging(probe)
    yield from _device_objects(probe)
    told: set[Reason] = set()
    for name, rejection in sorted(probe.rejections.items(), key=lambda entry: (entry[1].lack == DROPPED, entry[0])):
        row = REPAIRS.get(rejection.reason)
        if row is not None and rejection.reason not in told and probe.may_use(name):
            told.add(rejection.reason)
            if rejection.reason is Reason.NO_TOPOLOGY:
                permissive = "" if may_use_cpuset(probe.pod.request) else PERMISSIVE
                row = ZONES_MISSING if _is_published(probe, name) else row + permissive
            yield Remedy("repair", name, row.format(node=name, detail=rejection.detail or rejection.message))


def _device_objects(probe: Probe) -> Iterator[Remedy]:
    """Yield the first node without a usable Device object."""
    for name, rejection in sorted(probe.rejections.items()):
        if rejection.reason is Reason.DEVICES and not rejection.resolvable and probe.may_use(name):
            if rejection.message == NO_OBJECT:
                text = f"publish a Device object for {name} (is koordlet running, or the node agent with --devices?)"
            elif rejection.message == UNUSABLE:
                text = f"repair the devices of {name}: {rejection.detail}"
            else:
                continue
            yield Remedy("repair", name, text)
            return


def _is_published(probe: Probe, node: str) -> bool:
    info = probe.scheduler.cache.nodes.get(node)
    return info is not None and info.current is not None


def _lagging(probe: Probe) -> Iterator[Remedy]:
    """
    Yield a kubelet-owned node whose topology shows more CPUs in use than its known pods request.

    Pods have ended, but the topology still includes them. Decisions use the published amounts, because a pod of another
    scheduler may have been bound without a watch event yet.
    """
    for name in probe.closest:
        info = probe.scheduler.cache.nodes.get(name)
        topology = None if info is None else info.topology
        if info is None or topology is None or topology.owner is not CpuOwner.KUBELET or not probe.may_use(name):
            continue
        shown = sum(zone.allocatable.get(CPU, 0) - zone.available.get(CPU, 0) for zone in topology.zones)
        asked = info.ledger.amounts.get(CPU, 0)
        if shown - asked >= MILLI:
            text = (
                f"the topology of {name} shows {amounts_text({CPU: shown})} in use, but its pods request {bare_amount(CPU, asked)}: "
                "its node agent lags behind or has stopped"
            )
            yield Remedy("repair", name, text)
            return


TRIES: Final = 12
"""Number of CPU counts that are tried downwards from the upper bound."""

MOST_COUNTED: Final = 16
"""Largest request for devices by number of which smaller ones are tried. Larger requests are percentages."""

LARGER: Final = 7
"""
Number of additional CPUs that are tried.

Kubelets with ``full-pcpus-only`` allocate whole cores only, of up to eight threads.
"""


def changed_sizes(probe: Probe) -> Iterator[Remedy]:
    """
    Yield other sizes that fit: a few more CPUs to fill whole cores, the most CPUs, or the most memory or devices with
    all CPUs.
    """
    container = largest_container(probe.pod.request.containers, CPU)
    if container is not None:
        yield from _cpus(probe, container)
    container = largest_container(probe.pod.request.containers, MEMORY)
    if container is not None:
        yield from _memory(probe, container)
    for name in sorted({name for it in probe.pod.request.containers for name in it.requests if "/" in name}):
        container = largest_container(probe.pod.request.containers, name)
        if container is not None:
            yield from _devices(probe, container, name)


def _devices(probe: Probe, container: Container, name: str) -> Iterator[Remedy]:
    asked = container.requests[name]
    for fewer in _fewer_devices(probe, name, asked):
        placement = probe.fits_on_one(with_amount(probe.pod.request, container, name, fewer))
        if placement is not None:
            text = f"container {container.name} with {fewer} {name} instead of {asked} fits on {where(placement)}"
            yield Remedy("size", placement.node, text)
            return


def _fewer_devices(probe: Probe, name: str, asked: int) -> Iterable[int]:
    """Return the amounts below the request to try, the largest first. Rejections have no bound for devices by id."""
    if name not in COUNTED_DEVICES:
        fewer = _bound(probe, name, 1)
        return (fewer,) if 0 < fewer < asked else ()
    whole = COUNTED_DEVICES[name] if asked > COUNTED_DEVICES[name] else 1
    return range(asked - whole, 0, -whole)[:TRIES] if whole > 1 or asked <= MOST_COUNTED else ()


def _cpus(probe: Probe, container: Container) -> Iterator[Remedy]:
    asked = container.requests[CPU]
    whole, others = asked // MILLI, effective_requests(probe.pod.request).get(CPU, 0) - asked
    reason = "whole cores" if asked % MILLI == 0 else "whole CPUs"
    for cpus in range(whole + 1, whole + 1 + LARGER):
        placement = probe.fits_on_one(with_amount(probe.pod.request, container, CPU, cpus * MILLI))
        if placement is not None:
            yield Remedy(
                "size", placement.node, f"{_say(container, cpus, asked)} fits on {where(placement)} ({reason})"
            )
            break
    room = _bound(probe, CPU, 1)
    smaller = -(-asked // MILLI) - 1
    top = min(smaller, (room - others) // MILLI) if room else smaller
    for cpus in range(top, max(0, top - TRIES), -1):
        placement = probe.fits_on_one(with_amount(probe.pod.request, container, CPU, cpus * MILLI))
        if placement is not None:
            yield Remedy("size", placement.node, f"{_say(container, cpus, asked)} fits on {where(placement)}")
            break


def _memory(probe: Probe, container: Container) -> Iterator[Remedy]:
    asked = container.requests[MEMORY]
    room = _bound(probe, MEMORY, 1)
    for amount in (room, room * 9 // 10, asked // 2, asked // 4):
        rounded = amount >> 20 << 20  # whole mebibytes
        if not 0 < rounded < asked:
            continue
        placement = probe.fits_on_one(with_amount(probe.pod.request, container, MEMORY, rounded))
        if placement is not None:
            less, all_of_it = short_amounts({MEMORY: rounded}), short_amounts({MEMORY: asked})
            text = f"container {container.name} with {less} memory instead of {all_of_it} fits on {where(placement)}"
            yield Remedy("size", placement.node, text)
            return


def _say(container: Container, cpus: int, asked: int) -> str:
    return f"container {container.name} with {cpus_text(cpus)} instead of {bare_amount(CPU, asked)}"


def _bound(probe: Probe, resource: str, unit: int) -> int:
    """Return the largest amount of a resource in the rejections, in units, or 0."""
    spoken = [probe.rejections[node].largest.get(resource, 0) for node in probe.closest if node in probe.rejections]
    free = [
        one.free
        for node in probe.closest
        for one in (probe.rejections[node].numbers if node in probe.rejections else ())
        if one.resource == resource
    ]
    return max([*spoken, *free], default=0) // unit


def largest_container(containers: Sequence[Container], resource: str) -> Container | None:
    """Return the application container with the largest request for a resource, or None."""
    apps = [one for one in containers if one.kind is ContainerKind.APP and one.requests.get(resource)]
    return max(apps, key=lambda one: one.requests[resource], default=None)


def with_amount(request: PodRequest, container: Container, resource: str, amount: int) -> PodRequest:
    """Return the request with another amount for one container. A limit that equals the request is changed with it."""
    limits = dict(container.limits)
    if limits.get(resource) == container.requests.get(resource):
        limits[resource] = amount
    changed = replace(container, requests={**container.requests, resource: amount}, limits=limits)
    containers = tuple(changed if one is container else one for one in request.containers)
    return replace(request, containers=containers)


def unknown_resources(probe: Probe) -> Iterator[Remedy]:
    """Yield the resources that no node has: the resource that was probably meant, or else that its device plugin is missing."""
    offered: set[str] = set()
    for info in probe.scheduler.cache.nodes.values():
        offered.update(name for name, amount in info.allocatable.items() if amount)
        if (devices := info.devices) is not None:
            offered.update(name for name, kind in TYPE_OF.items() if kind in devices.machine.by_type)
    request, request_class = probe.pod.request, probe.scheduler.classes.of(probe.pod)
    # Without the resources that a DeviceClass may serve.
    wanted = () if request_class is None else request_class.amounts.keys() - offered
    for name in sorted(name for name in wanted if "/" in name):
        near = next((other for other in sorted(offered) if "/" in other and is_near(plain(name), plain(other))), "")
        placement = probe.fits_on_one(_renamed(request, name, near)) if near else None
        node = probe.closest[0] if probe.closest else ""
        if placement is not None:
            text = f"no node has {name}: with {near} instead it fits on {where(placement)}"
            yield Remedy("size", placement.node, text)
        elif near:
            yield Remedy("repair", node, f"no node has {name}; nodes have {near}")
        else:
            by_id = "no device plugin and no Device object offers it"
            text = by_id if name in TYPE_OF else "is its device plugin running?"
            yield Remedy("repair", node, f"no node has {name}: {text}")


def _renamed(request: PodRequest, name: str, other: str) -> PodRequest:
    """Return the request with another resource of the same amounts."""

    def changed(amounts: ResourceList) -> ResourceList:
        return {other if key == name else key: amount for key, amount in amounts.items()}

    containers = tuple(
        replace(it, requests=changed(it.requests), limits=changed(it.limits)) for it in request.containers
    )
    return replace(request, containers=containers)


TAINTED_NODES: Final = 64
"""Maximum number of evaluated tainted nodes."""


def tainted_nodes(probe: Probe) -> Iterator[Remedy]:
    """Yield one tainted node with enough room."""
    for name in _refused_for(probe, Reason.TAINT):
        info = probe.scheduler.cache.nodes.get(name)
        taints = () if info is None or info.node is None else info.node.taints
        constraints = probe.pod.request.constraints
        tolerations = (
            *constraints.tolerations,
            *(Toleration(key=taint.key, value=taint.value, effect=str(taint.effect)) for taint in taints),
        )
        request = replace(probe.pod.request, constraints=replace(constraints, tolerations=tolerations))
        placement = probe.fits(request, name)
        if placement is not None:
            texts = ", ".join(
                f"{taint.key}{f'={taint.value}' if taint.value else ''}:{taint.effect}" for taint in taints
            )
            yield Remedy("node", name, f"tolerating {texts} it fits on {where(placement)}")
            return


def _refused_for(probe: Probe, reason: Reason) -> list[str]:
    """Return nodes with the reason: the first of each message, then the second of each, and so on."""
    by_message: dict[str, list[str]] = {}
    for name, rejection in sorted(probe.rejections.items()):
        if rejection.reason is reason:
            by_message.setdefault(rejection.message, []).append(name)
    turns = zip_longest(*(names[:TAINTED_NODES] for names in by_message.values()))
    return [name for turn in turns for name in turn if name is not None][:TAINTED_NODES]


__all__ = ["REMEDIES", "Remedy", "advise", "plan_here", "plan_in_thread"]

CLOSEST: Final = 8
"""Maximum number of evaluated nodes: the closest ones."""

SHOWN: Final = 6
"""Maximum number of remedies for one pod."""

REMEDIES: Final = (
    unknown_resources,
    changed_sizes,
    relaxed_policies,
    node_policies,
    kubelet_settings,
    tainted_nodes,
    departures,
    situations,
)
"""
Functions that take a probe and yield verified remedies.

A rebind is handled separately, because its planning may take long.
"""

Planner = Callable[[NodeLayout], Awaitable[RebindPlan]]


async def plan_here(layout: NodeLayout) -> RebindPlan:
    """Plan in the current thread, for commands."""
    return plan_rebind(layout)


async def plan_in_thread(layout: NodeLayout) -> RebindPlan:
    """Plan in a thread. A layout is immutable, and scheduling continues meanwhile."""
    return await asyncio.to_thread(plan_rebind, layout)


async def advise(
    scheduler: Scheduler, pod: Pod, rejections: Mapping[str, Rejection], planner: Planner = plan_here
) -> Sequence[Remedy]:
    """
    Return remedies for a pod that every node rejects, the most useful kinds first. Yields to other tasks in between.
    """
    probe = Probe(scheduler, pod, rejections, tuple(closest_nodes(rejections, CLOSEST)))
    # Keyed by text, because two remedies may have the same text.
    found = {remedy.text: remedy async for remedy in _all(probe, planner)}
    return list(found.values())[:SHOWN]


async def _all(probe: Probe, planner: Planner) -> AsyncIterator[Remedy]:
    for remedies in REMEDIES:
        await asyncio.sleep(0)
        for remedy in remedies(probe):
            yield remedy
            await asyncio.sleep(0)
    if (after := await one_rebind(probe, planner)) is not None:
        yield after
