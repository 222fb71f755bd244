"""
How arrivals are replayed, with how much effort, and what a topology says where states have been given up for lack of it.

Theory. What is not published of a node makes variants of it, some with options that are unlikely. States with such options may take the
more effort the more places they leave for CPUs, until all likely states are given up although nothing has contradicted any. A topology that
agrees with the rest says nothing for their options then, as what was given up may agree as well: it does not explain it, and the node is
begun with again, with every variant, so that none is ruled out. Until then nothing is known of the node: unlikely states do not answer for
likely ones that nothing has contradicted. Where the last likely state is contradicted instead, it does explain it.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from koord_numa.core.kubelet.budget import EVENT
from koord_numa.core.kubelet.inference.hypothesis import Hypothesis

MOST_EFFORT: Final = 2 * EVENT
"""Steps of a replay after a topology has contradicted all states that were left."""


@dataclass(frozen=True, slots=True)
class Again:
    """How arrivals are replayed: in so many steps at most, without states that do not lead on to what is known of a later moment."""

    effort: int = EVENT
    leads_on: Callable[[Hypothesis], bool] | None = None


ONCE: Final = Again()
"""As soon as anything is new."""


class GivenUp(IntEnum):
    """Which states a replay has given up because its effort was spent."""

    NONE = 0
    SOME = 1
    LIKELY = 2  # all without unlikely options

    def explained(self, kept: Iterable[Hypothesis]) -> bool:
        """Do these states explain a topology that they agree with?"""
        return any(not one.options or self is not GivenUp.LIKELY for one in kept)


def given_up(before: Iterable[Hypothesis], after: Iterable[Hypothesis]) -> GivenUp:
    """Which were given up of those before an arrival, where only these are followed after it."""
    had_likely = any(not one.options for one in before)
    return GivenUp.LIKELY if had_likely and all(one.options for one in after) else GivenUp.SOME
