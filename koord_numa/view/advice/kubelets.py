"""A topology manager policy or scope of a kubelet-owned node under which the waiting pod fits as large as it is."""

from collections.abc import Iterator
from typing import Final

from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.node import KubeletConfig
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.objects.vocabulary import KubeletPolicy, KubeletScope
from koord_numa.core.preempt.dry_run import answer_of
from koord_numa.core.scheduling.evaluate import ScoredPlacement
from koord_numa.core.value_objects import replace
from koord_numa.engine.cache.node_info import NodeInfo
from koord_numa.view.advice.probe import Probe, Remedy, where

NODES: Final = 2
"""Nodes that are tried. A node costs up to seven views of its kubelet's state."""

_FROM_STRICT: Final = (
    KubeletPolicy.SINGLE_NUMA_NODE,
    KubeletPolicy.RESTRICTED,
    KubeletPolicy.BEST_EFFORT,
    KubeletPolicy.NONE,
)


def kubelet_settings(probe: Probe) -> Iterator[Remedy]:
    """The least change of one node's kubelet after which the pod fits there: its scope, then its policy, then both."""
    tried = 0
    for name in probe.closest:
        info = probe.scheduler.cache.nodes.get(name)
        if info is None or info.current is None or not probe.may_use(name) or not _is_kubelets(info):
            continue
        if tried == NODES:
            return
        tried += 1
        for config in _laxer(info.current.kubelet):
            placement = _fits(probe, info, config)
            if placement is not None:
                change = _change(info.current.kubelet, config)
                text = f"if the kubelet of {name} had {change}, it fits on {where(placement)}"
                yield Remedy("kubelet", name, text)
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


def _fits(probe: Probe, info: NodeInfo, config: KubeletConfig) -> Placement | None:
    """The placement on a copy of the node whose kubelet has these settings, with the pods that are counted there."""
    request_class = probe.scheduler.classes.of(probe.pod)
    if request_class is None or info.current is None:
        return None
    trial = NodeInfo(info.name, headroom=info.headroom)
    trial.set_objects(info.node, replace(info.current, kubelet=config))
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
