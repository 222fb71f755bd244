"""A pod that counts as bound before the API server has shown it so, as kube-scheduler's cache has it."""

import msgspec

from koord_numa.core.objects.request import Pod
from koord_numa.core.objects.verdicts import Placement


class AssumedPod(msgspec.Struct):
    """A placement that the API server has not shown yet. ``confirmed`` is when the bind was answered, monotonic seconds."""

    pod: Pod
    placement: Placement
    confirmed: float | None = None
