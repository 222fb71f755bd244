"""What the engine is given by the composition root: the ports it writes through, its clock and its dice."""

from asyncio import sleep
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from random import SystemRandom
from time import monotonic

from koord_numa.ports import AnnotationWriter, Binder, Clock, Lease, Recorder


@dataclass(frozen=True, slots=True)
class Outside:
    """The ports of one engine. ``random`` gives numbers in [0, 1) and only spreads waiting times, never a decision."""

    binder: Binder
    recorder: Recorder
    lease: Lease
    annotate: AnnotationWriter
    clock: Clock = monotonic
    sleep: Callable[[float], Awaitable[None]] = sleep
    random: Callable[[], float] = SystemRandom().random
