"""Pods whose leaving makes room: those that terminate already, and otherwise one that could be evicted by hand."""

from collections.abc import Iterator

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement
from koord_numa.core.preempt.dry_run import DryRun, PreemptionNode
from koord_numa.view.advice.probe import Probe, Remedy, where


def departures(probe: Probe) -> Iterator[Remedy]:
    """A node that frees by itself, if there is one; else the least important single pod whose leaving suffices."""
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
    """What the pod would get without these pods and what their claims hold, by preemption's dry run."""
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
    """By priority, then the youngest first, as preemption picks victims."""
    pod, _ = entry
    return (pod.request.priority, -pod.created, str(pod.key))
