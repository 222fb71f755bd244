"""The states after one pod has left unseen, and those without pods that are known to be gone but not from where."""

from collections.abc import Iterator

from koord_numa.core.kubelet.demand import PodDemand
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis, released
from koord_numa.core.kubelet.inference.unlocated import without
from koord_numa.core.kubelet.inference.variants import one_of_each_kind
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import KubeletScope


def with_one_away(one: Hypothesis) -> Iterator[Hypothesis]:
    """Each pod away in turn that holds anything: it may have left, unseen, from wherever it was. Pods of one kind leave the same."""
    for each in without(one, one.leaving):
        yield each
        tried: list[PodRequest] = []
        for uid, request in each.unlocated.items():
            if request not in tried:
                tried.append(request)
                yield from without(each, [uid])
        for uid in one_of_each_kind(each, holding(each)):
            yield released(each, uid)


def holding(one: Hypothesis) -> Iterator[str]:
    """The pods that the managers have given something."""
    for uid, pod in one.state.pods.items():
        if any(given.cpus or given.devices or given.memory for given in pod.grant.containers):
            yield uid


def without_leaving(one: Hypothesis, demand: PodDemand) -> Iterator[Hypothesis]:
    """Where several containers are aligned one by one, more room for one of them may leave less for the next."""
    node = one.state.node
    if not (one.leaving and node.aligns and node.config.topology_scope is KubeletScope.CONTAINER):
        return iter(())
    parts = sum(1 for _, part in demand.containers if part.cpus or part.memory or part.devices)
    return without(one, one.leaving) if parts > 1 else iter(())
