"""The longest slice of a decision on a node whose kubelet is followed: eight NUMA nodes, pods on their way and pods gone unseen."""

import time
from collections.abc import Iterator
from typing import Final

from bench.figure import Figure
from koord_numa.core.kubelet.admission import would_admit
from koord_numa.core.kubelet.view import Explorations, KubeletView
from koord_numa.core.objects.vocabulary import KubeletPolicy
from koord_numa.core.value_objects import replace
from koord_numa.wire import parse_pod
from tests.kubelets.hardest import QUESTIONS, hardest

_TARGET_MS: Final = 20.0
_SEEDS: Final = 8


def figures() -> Iterator[Figure]:
    """CPU time of the longest slice of a decision, of as many nodes as there are seeds and policies."""
    longest, asked = 0.0, 0
    for seed in range(_SEEDS):
        for policy in (KubeletPolicy.BEST_EFFORT, KubeletPolicy.RESTRICTED):
            life = hardest(policy, seed)
            seen = life.seen()
            if seen is None or not isinstance(seen.offer, KubeletView):
                continue
            for spec in QUESTIONS:
                request = parse_pod(life.pod("question", spec)).request
                later = Explorations(seen.offer.hypotheses)
                view = replace(seen.offer, explorations=later)
                is_finished = False
                while not is_finished:
                    begin = time.process_time()
                    if not later.of:
                        would_admit(request, view)
                        is_finished = not later.of
                    else:
                        is_finished = later.advance()
                    longest = max(longest, time.process_time() - begin)
                asked += 1
    yield Figure("kubelet-worst decision", 1e3 * longest, "ms", _TARGET_MS, note=f"of {asked}")
