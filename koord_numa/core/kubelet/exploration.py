"""
A pod whose admission depends on kubelet options that are not known: may it go there to find out?

One pod at a time on a node, and only one that a controller replaces: the kubelet's answer is evidence either way, and a pod that it
refuses is lost. Evidence is in the objects: pods that run, and pods that failed with the kubelet's reason.
"""

from typing import Final

from koord_numa.core.kubelet.admission import split_cores
from koord_numa.core.kubelet.demand import pod_demand
from koord_numa.core.kubelet.state import KubeletAdmission
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.verdicts import Reason, Rejection
from koord_numa.core.objects.vocabulary import UnknownKubeletOptions
from koord_numa.core.value_objects import replace

UNKNOWN_OPTIONS: Final = "node(s) whose kubelet options are not known"


def refuse_exploration(
    request: PodRequest, view: KubeletView, admission: KubeletAdmission, rule: UnknownKubeletOptions
) -> Rejection | None:
    """Why the pod may not explore these options on this node; ``None`` when it explores nothing, or may."""
    if not admission.explores:
        return None
    options = f"{_shape(request, view, admission)}{', '.join(admission.explores)}"
    if detail := _forbidden(request, view, admission, rule):
        # What it lacks if the options are on, evictions may free for it: then it depends on none of them.
        if admission.lacks is not None:
            return replace(admission.lacks, detail=f"{admission.lacks.detail}; {options}{detail}")
        return Rejection(Reason.KUBELET_SMT, UNKNOWN_OPTIONS, f"{options}{detail}", resolvable=False)
    # One at a time: if two were on their way and one was refused, it would not be known for which option.
    if view.explored:
        return Rejection(
            Reason.KUBELET_SMT, UNKNOWN_OPTIONS, f"{options}: another pod is finding out", resolvable=False
        )
    return None


def _forbidden(request: PodRequest, view: KubeletView, admission: KubeletAdmission, rule: UnknownKubeletOptions) -> str:
    """Why the pod may not explore these options at all, to be read after their names; empty where it may."""
    if rule is not UnknownKubeletOptions.EXPLORE:
        return " is not known, and the pod might be refused for it"
    # One refusal is proof that the option is on. Asking again would lose another pod to learn the same.
    if view.found_on.intersection(admission.explores):
        return ": its kubelet refused a pod that found out"
    if not request.replaceable:
        return " is not known, and only pods that a controller replaces find out, as a refused pod is lost"
    return ""


def _shape(request: PodRequest, view: KubeletView, admission: KubeletAdmission) -> str:
    """What about the pod makes it depend on the option, where that is a count of CPUs: ``3 CPUs are not a multiple of 2; …; ``."""
    if view.cores.option not in admission.explores:
        return ""
    spoiled = split_cores(pod_demand(request), view)
    return "" if spoiled is None else f"{spoiled.detail}; "
