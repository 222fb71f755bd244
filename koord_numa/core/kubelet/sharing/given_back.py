"""
Which devices are surely free of which something is known: those that a pod held that is gone, and that no other one can hold now.

Theory. A device is near the same NUMA nodes for as long as it is there. What is known of two devices may be of one only if each may be
near all that the other surely is, and if they are near equally many where both numbers are known. A device of a pod that is gone that can
be none of those in use is free, whenever the pod left and whatever others were given in which order.
Two devices of one pod are two. Those of two pods that are gone are two if they cannot be one.

Example: two devices are near each of NUMA nodes 0 to 3. A pod that is gone held one near 0 and 1 and no others; those in use are near 2 or
3. One of the devices that are free is near 0 and 1, whichever is near what else.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping

from koord_numa.core.kubelet.sharing.reach import Place, Reach

Held = tuple[str, Place]
"""A device that a pod, by its uid, holds or held."""


def surely_free(
    reach: Mapping[str, Mapping[Place, Reach]], there: Collection[str], gone: Iterable[str]
) -> dict[Held, Reach]:
    """What is known of different devices that are free, by who held them. ``there`` are who holds some, ``gone`` pods that did."""
    left = [uid for uid in gone if uid in reach and uid not in there]
    if not left:
        return {}
    in_use = [each for uid in there if uid in reach for each in reach[uid].items()]
    found: dict[Held, Reach] = {}
    # The best known ones first: what little is known of may be one of them.
    for _, uid, place in sorted(_by_what_is_open(reach, left)):
        mine = reach[uid][place]
        others = (each for (other, where), each in found.items() if other != uid and where[0] == place[0])
        if not any(where[0] == place[0] and may_be_one(mine, each) for where, each in in_use) and not any(
            may_be_one(mine, each) for each in others
        ):
            found[uid, place] = mine
    return found


def _by_what_is_open(
    reach: Mapping[str, Mapping[Place, Reach]], uids: Iterable[str]
) -> Iterator[tuple[int, str, Place]]:
    return ((each.may.bit_count(), uid, place) for uid in uids for place, each in reach[uid].items())


def may_be_one(one: Reach, other: Reach) -> bool:
    """May what is known of two devices be of the same?"""
    if one.must & ~(other.must | other.may) or other.must & ~(one.must | one.may):
        return False
    return not (one.width and other.width and one.width != other.width)
