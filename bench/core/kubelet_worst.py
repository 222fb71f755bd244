"""The longest slice of a decision on a node whose kubelet is followed: eight NUMA nodes, pods on their way and pods gone unseen."""

import time
from collections.abc import Iterator
from typing import Final

from bench.figure import Figure
from koord_numa.core.kubelet.prediction import would_admit
from koord_numa.core.kubelet.view import Explorations, KubeletView
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.wire import parse_pod
from tests.kubelets.hardest import QUESTIONS, hardest

_TARGET_MS: Final = 20.0
_SEEDS: Final = 8


def figures() -> Iterator[Figure]:
    """CPU time of the longest slice of a decision, of as many nodes as there are seeds and policies."""
    slices(KubeletPolicy.BEST_EFFORT, 0)  # a running scheduler has imported numpy
    nodes = [
        (policy, seed) for seed in range(_SEEDS) for policy in (KubeletPolicy.BEST_EFFORT, KubeletPolicy.RESTRICTED)
    ]
    found = [times for policy, seed in nodes for times in slices(policy, seed)]
    yield Figure("kubelet-worst decision", 1e3 * max(map(max, found)), "ms", _TARGET_MS, note=f"of {len(found)}")


def slices(policy: KubeletPolicy, seed: int) -> list[list[float]]:
    """Return the CPU times of all slices, in seconds, for each question on one node."""
    life = hardest(policy, seed)
    seen = life.seen()
    if seen is None or not isinstance(seen.offer, KubeletView):
        return []
    found = []
    for spec in QUESTIONS:
        request = parse_pod(life.pod("question", spec)).request
        later = Explorations(seen.offer.hypotheses)
        view = replace(seen.offer, explorations=later)
        times, is_finished = list[float](), False
        while not is_finished:
            begin = time.process_time()
            if not later.of:
                would_admit(request, view)
                is_finished = not later.of
            else:
                is_finished = later.advance()
            times.append(time.process_time() - begin)
        found.append(times)
    return found
