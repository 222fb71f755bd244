"""The claims of one pod: which objects they are, and what they mean for a decision."""

from dataclasses import dataclass

from koord_numa.core.claims.objects.claim import ClaimToAllocate, DeviceRequest
from koord_numa.core.claims.search.allocation import DeviceResult
from koord_numa.core.claims.search.inventory import DeviceId
from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.constraints import NodeTerm


@dataclass(frozen=True, slots=True)
class PodResourceClaim:
    """
    An entry of ``spec.resourceClaims``. ``claim`` is the name of the ResourceClaim, empty while a template's is not made yet.

    ``needed`` is false where the controller has said that the template makes none.
    """

    name: str
    claim: str = ""
    from_template: bool = False
    needed: bool = True


@dataclass(frozen=True, slots=True)
class MadeClaim:
    """The claim for extended resources that an earlier attempt of the pod has made: its requests, and whether it has devices."""

    requests: tuple[DeviceRequest, ...]
    allocated: bool = False


@dataclass(frozen=True, slots=True)
class PodClaims:
    """
    What a pod's claims mean for nodes: equal for pods whose claims ask for the same, whatever their names.

    ``problem`` is why the pod cannot be tried yet. ``allocated`` are the nodes that claims which have devices can be used from, ``devices``
    and ``cpus`` what these claims hold: the pod has to be near them as to those that are still to be allocated. ``extended`` are the
    pod's extended resources that DeviceClasses serve, with the class, where a node does not advertise them; ``made`` is the claim for
    them that exists already. ``held`` are results of allocated claims, by entry, whose devices take resources of the node.
    """

    to_allocate: tuple[ClaimToAllocate, ...] = ()
    allocated: tuple[tuple[NodeTerm, ...], ...] = ()
    problem: str = ""
    devices: tuple[DeviceId, ...] = ()
    cpus: CpuSet = EMPTY
    extended: tuple[tuple[str, str], ...] = ()
    made: MadeClaim | None = None
    held: tuple[tuple[str, tuple[DeviceResult, ...]], ...] = ()
