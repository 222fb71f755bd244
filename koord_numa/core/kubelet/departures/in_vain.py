"""
How many dry runs the replay of pods on their way takes at least, so that none is begun in vain.

Theory. Where departures are followed together with the pods that are left (strict policies), each state before an arrival is followed into
at least one state after it, and that takes a dry run. States that differ in the pods whose place is known, or in what one of these has,
still do after the arrival: it has no pod in them that it is not itself, and it takes none away. So there are never fewer such states than
before, until a verdict that is known rules some out, and each of them costs a dry run for each arrival up to there.

Example: 37 states have been found, and 8 more pods are on their way. That takes 296 dry runs at least; where 220 are left, the answer is
the same without them.
"""

from collections.abc import Collection, Iterable

from koord_numa.core.kubelet.inference.hypothesis import Hypothesis
from koord_numa.core.kubelet.room import STRICT


def surely_takes(states: Collection[Hypothesis], fates: Iterable[bool | None]) -> int:
    """
    So many dry runs are taken before the last one begins, if each of these states is followed through arrivals with these verdicts.

    ``None`` is a verdict that is not known.
    """
    first = next(iter(states), None)
    # Under other policies states that leave equal room become one.
    if first is None or first.state.node.config.topology_policy not in STRICT:
        return 0
    rounds = 0
    for fate in fates:
        rounds += 1
        if fate is not None:
            break  # the arrival itself is replayed in every state before its verdict tells
    return len({one.located for one in states}) * rounds - 1
