"""
Why a Koordinator policy said no, in Koordinator's words. Texts are made only when they are read.

It explains hints; numbers of what is free and what was needed are explained elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from koord_numa.core.numa.hint_providers import Hints, ResourceHints, hints_of


@dataclass(frozen=True, slots=True)
class NumaRejection:
    """Either resources that are ``impossible``, or all ``wishes`` that could not be brought together."""

    impossible: tuple[str, ...] = ()
    wishes: Sequence[ResourceHints] = ()
    joins: str = ""

    def reasons(self) -> list[str]:
        """The sentences. As Koordinator's topologymanager, NUMATopologyUnsatisfied and NUMATopologyUnaligned messages."""
        if self.impossible:
            return [f"Unsatisfied NUMA {resource}" for resource in self.impossible]
        # Sorted, as Koordinator's message is: map order must not make the same refusal look new.
        wanted = sorted(f"{wish.resource} {_wanted(wish.stated)}" for wish in self.wishes if wish.stated is not None)
        return [f"Unaligned NUMA Hint cause {self.joins.join(wanted)}"]


def refuse_impossible(wishes: Iterable[ResourceHints]) -> NumaRejection:
    """No set of NUMA nodes could serve some resources."""
    return NumaRejection(impossible=tuple(sorted(wish.resource for wish in wishes if wish.impossible)))


def refuse_unaligned(wishes: Sequence[ResourceHints], joins: str) -> NumaRejection:
    """Every resource could be served, but not all of them as the policy wants."""
    return NumaRejection(wishes=wishes, joins=joins)


def _wanted(stated: Hints) -> str:
    hints = [hint for hint in (hints_of(stated) if stated else ()) if not hint.unsatisfied]
    preferred = " ".join(mask_text(hint.mask) for hint in hints if hint.preferred)
    return f"prefer [{preferred}] among [{' '.join(mask_text(hint.mask) for hint in hints)}]"


@lru_cache(maxsize=4096)
def mask_text(mask: int | None) -> str:
    """
    A set in binary, padded to pairs of digits, as Koordinator's bitmask prints it.

    Its width is compared with powers of four inclusively, so that an exact power has one digit more: 4 is ``100``, 5 ``0101``.
    """
    if mask is None:
        return "<nil>"
    width = 2
    while mask > 1 << width:
        width += 2
    return format(mask, f"0{width}b")
