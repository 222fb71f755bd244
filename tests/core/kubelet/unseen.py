"""Pods with init containers, and a kubelet whose pods have left before any news of it."""

from itertools import combinations
from random import Random

from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.request import PodRequest
from koord_numa.core.objects.vocabulary import ContainerKind
from tests.core.kubelet.nodes import GI, app, init, pod, sidecar


def initialised(dice: Random, fewest: int) -> PodRequest:
    """An init container, ``fewest`` to three containers of any kind, and a last one."""
    parts = [init(dice.randint(1, 6), memory=dice.randint(1, 5) * GI)]
    for place in range(dice.randint(fewest, 3)):
        kind = dice.choice((init, sidecar, app, app))
        parts.append(kind(dice.randint(1, 4), f"c{place}", memory=dice.randint(1, 5) * GI))
    parts.sort(key=lambda part: part.kind is ContainerKind.APP)
    return pod(*parts, app(dice.randint(1, 3), "last"))


def chained(dice: Random, most: int = 4, gpus: int = 0) -> PodRequest:
    """Init containers and sidecars in any order, of up to ``most`` CPUs, and one or two others."""
    kinds = [*(dice.choice((init, init, sidecar)) for _ in range(dice.randint(1, 4))), *[app] * dice.choice((1, 1, 2))]
    return pod(
        *(
            kind(
                dice.randint(1, most if dice.random() < 0.3 else 4),
                f"c{place}",
                memory=dice.randint(1, 5) * GI,
                **({"gpu": number} if (number := min(gpus, dice.choice((0, 0, 1, 1, 2)))) else {}),
            )
            for place, kind in enumerate(kinds)
        )
    )


def refused_without(state: KubeletState, asked: PodRequest) -> tuple[str, ...] | None:
    """Pods without which the kubelet refuses this one, the fewest; ``None`` where it admits it whichever have left."""
    for count in range(len(state.pods) + 1):
        for gone in combinations(state.pods, count):
            left = state
            for uid in gone:
                left = left.without(uid)
            if not isinstance(admit_pod(left, "asked", asked), Admitted):
                return gone
    return None
