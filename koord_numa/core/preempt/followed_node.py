"""
A node that is followed as if some of its pods had left: what a decision would be asked about once they are gone.

Published amounts say less than the states that are followed: no topology shows what init containers hold, nor which options are on. A pod
that only this speaks against fits by the amounts alone, with no eviction or with one in vain.
"""

from collections.abc import Collection

from koord_numa.core.kubelet.inference.arrivals import without_left
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.unseen_departures import mask_of
from koord_numa.core.kubelet.view import KubeletView
from koord_numa.core.value_objects import replace


def without_pods(followed: KubeletView, uids: Collection[str], published: KubeletView) -> KubeletView:
    """
    The view of a followed node without these pods; others stay where they are foreseen. ``published`` is what its amounts say without them,
    which counts requests and whole cores.
    """
    requested = published.state.requested
    states = (after for one in followed.hypotheses for after in without_left(one, uids))
    return replace(
        followed,
        hypotheses=tuple([replace(one, state=replace(one.state, requested=requested)) for one in states]),
        rooms=(),  # as many as there are states: which of them leave the same room is found out where they are asked about
        on_their_way=None,
        cores=published.cores,
    )


def numa_of(followed: KubeletView, uid: str, foreseen: Collection[int]) -> int | None:
    """
    The NUMA node on which all that the pod holds is, as its kubelet is followed; ``None`` where that is not one, or not certain.

    ``foreseen`` are those on which it was to be when it was placed: wrong where a pod that was decided on before it came later, or never.
    """
    masks = (_mask_in(one, uid) for one in followed.hypotheses)
    first = next(masks)
    if first.bit_count() != 1:
        return None
    numa = first.bit_length() - 1
    # The likeliest state says what was foreseen, as of nearly every pod: the others are not worth a look.
    if {*foreseen} == {numa}:
        return numa
    return numa if all(mask == first for mask in masks) else None


def _mask_in(one: Hypothesis, uid: str) -> int:
    pod = one.state.pods.get(uid)
    return 0 if pod is None or uid in one.spread or uid in one.mixed else mask_of(pod.grant, one.state.node)
