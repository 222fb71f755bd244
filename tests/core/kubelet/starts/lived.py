"""Kubelets that pods have come to and gone from at random."""

from collections.abc import Callable, Sequence
from random import Random

from koord_numa.core.kubelet.admit import Admitted, admit_pod
from koord_numa.core.kubelet.state import KubeletState
from koord_numa.core.objects.request import Container, PodRequest
from tests.core.kubelet.nodes import pod

LEAVES = 0.4
"""So often a pod leaves after an arrival."""


def lived(
    truth: KubeletState, pods: int, containers: Callable[[Random], Sequence[Container]], dice: Random
) -> tuple[KubeletState, dict[str, PodRequest]]:
    """A kubelet's state once so many pods of these containers have come to it, and the pods that are still there."""
    requests: dict[str, PodRequest] = {}
    for number in range(pods):
        request = pod(*containers(dice))
        answer = admit_pod(truth, f"p{number}", request)
        truth = answer.state
        if isinstance(answer, Admitted):
            requests[f"p{number}"] = request
        if requests and dice.random() < LEAVES:
            uid = dice.choice(sorted(requests))
            truth = truth.without(uid)
            del requests[uid]
    return truth, requests
