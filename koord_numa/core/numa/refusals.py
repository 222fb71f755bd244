"""
Reasons of rejections by a Koordinator policy, with Koordinator's texts, which are created when they are read.

Explains hints. Numbers of free and needed amounts are explained elsewhere.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache

from koord_numa.core.numa.hint_providers import Hints, ResourceHints, hints_of


@dataclass(frozen=True, slots=True)
class NumaRejection:
    """The reason of a rejection: the ``impossible`` resources, or all ``wishes`` that could not be merged."""

    impossible: tuple[str, ...] = ()
    wishes: Sequence[ResourceHints] = ()
    joins: str = ""

    def reasons(self) -> list[str]:
        """Return the sentences. As NUMATopologyUnsatisfied and NUMATopologyUnaligned of Koordinator's topologymanager."""
        if self.impossible:
            return [f"Unsatisfied NUMA {resource}" for resource in self.impossible]
        # Sorted as in Koordinator: map order must not change the message.
        wanted = sorted(f"{wish.resource} {_wanted(wish.stated)}" for wish in self.wishes if wish.stated is not None)
        return [f"Unaligned NUMA Hint cause {self.joins.join(wanted)}"]


def refuse_impossible(wishes: Iterable[ResourceHints]) -> NumaRejection:
    """Return a rejection for resources that no set of NUMA nodes could serve."""
    return NumaRejection(impossible=tuple(sorted(wish.resource for wish in wishes if wish.impossible)))


def refuse_unaligned(wishes: Sequence[ResourceHints], joins: str) -> NumaRejection:
    """Return a rejection for resources that are possible, but not together under the policy."""
    return NumaRejection(wishes=wishes, joins=joins)


def _wanted(stated: Hints) -> str:
    hints = [hint for hint in (hints_of(stated) if stated else ()) if not hint.unsatisfied]
    preferred = " ".join(mask_text(hint.mask) for hint in hints if hint.preferred)
    return f"prefer [{preferred}] among [{' '.join(mask_text(hint.mask) for hint in hints)}]"


@lru_cache(maxsize=4096)
def mask_text(mask: int | None) -> str:
    """
    Return a set in binary, padded to pairs of digits, as Koordinator's bitmask prints it.

    The comparison with powers of four is inclusive, so an exact power has one digit more: 4 is ``100``, 5 ``0101``.
    """
    if mask is None:
        return "<nil>"
    width = 2
    while mask > 1 << width:
        width += 2
    return format(mask, f"0{width}b")
