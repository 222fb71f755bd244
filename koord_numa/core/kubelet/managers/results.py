"""
What a kubelet answers to a pod, and what a scheduler may conclude beforehand. Values only; nothing here decides.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Final

from koord_numa.core.cpuset import EMPTY, CpuSet
from koord_numa.core.objects.verdicts import Rejection
from koord_numa.core.objects.vocabulary import ContainerKind, KubeQos
from koord_numa.core.resources import ResourceList
from koord_numa.core.value_objects import ValueObject, value_field, value_object

TOPOLOGY_AFFINITY: Final = "TopologyAffinityError"
SMT_ALIGNMENT: Final = "SMTAlignmentError"
UNEXPECTED_ADMISSION: Final = "UnexpectedAdmissionError"
REASONS: Final = (TOPOLOGY_AFFINITY, SMT_ALIGNMENT, UNEXPECTED_ADMISSION)
"""What ``status.reason`` says of a pod that the resource managers refused."""
OUT_OF: Final = "OutOf"
"""Followed by the resource that does not fit the node: ``OutOfcpu``."""


class ContainerAffinity(ValueObject, gc=False):
    """The merged topology hint that a container's CPUs, memory and devices follow; ``mask`` is ``None`` for "anywhere"."""

    mask: int | None
    preferred: bool


class MemoryBlock(ValueObject, gc=False):
    """Memory of one type, taken together from the NUMA nodes of ``mask``, in bytes."""

    resource: str
    amount: int
    mask: int


class ContainerGrant(ValueObject, gc=False):
    """What the kubelet gives to one container. Without CPUs of its own it runs in the shared pool."""

    name: str
    kind: ContainerKind
    cpus: CpuSet = EMPTY
    memory: tuple[MemoryBlock, ...] = ()
    devices: Mapping[str, tuple[str, ...]] = value_field(default_factory=dict)
    hint: ContainerAffinity | None = None  # None under policy none
    numas: int = 0  # mask of NUMA nodes that its CPUs may be of, where only counts are known; 0 for any


@dataclass(frozen=True, slots=True)
class AdmitRejection:
    """The kubelet refuses: ``reason`` is the pod's ``status.reason``, ``detail`` says what was missing, with numbers."""

    reason: str
    detail: str


@value_object
class Grant:
    """
    The kubelet admits: what every container gets, in the kubelet's order.

    ``place`` remembers ``hypothesis.signature``, ``running`` how many CPUs of each NUMA node its containers use (``reports/report.py``).
    """

    qos: KubeQos
    containers: tuple[ContainerGrant, ...]
    # Excluded from comparison and text: a cache is no part of the value.
    place: tuple[object, ...] = field(default=(), init=False, repr=False, compare=False)
    running: tuple[int, ...] = field(default=(), init=False, repr=False, compare=False)


class Charge(Enum):
    """How sure we are on which NUMA nodes an admitted pod will hold its resources."""

    PREDICTED = "predicted"  # the amounts per NUMA node are what the kubelet will take
    EVERYWHERE = "everywhere"  # it may be any of several: the amounts are counted on every NUMA node it could be


class KubeletAdmission(ValueObject, gc=False):
    """
    A scheduler's conclusion that a kubelet will admit a pod, and what it will then hold.

    ``numa`` is what to charge per NUMA node, ascending: CPUs (milli) only where exclusive, memory only where bound. ``mask`` is the
    NUMA node set of the whole pod, ``None`` when nothing is bound to any. ``cpus`` is known only when the kubelet's full
    configuration is. ``note`` is the assumption that decided, a sentence for people, empty when there was none. ``explores`` names options
    of the kubelet that are not published and on which the admission depends: the pod's fate would tell whether they are on. ``lacks`` is
    why the kubelet refuses under the first of these, where evicting pods may help under all of them.
    """

    numa: tuple[tuple[int, ResourceList], ...] = ()
    charge: Charge = Charge.PREDICTED
    mask: int | None = None
    cpus: CpuSet = EMPTY
    note: str = ""
    explores: tuple[str, ...] = ()
    lacks: Rejection | None = None
