"""Combinations without those that differ only by swapping interchangeable neighbours. Knows nothing about what is combined."""

from collections.abc import Hashable, Iterator, Sequence


def representatives(kinds: Sequence[Hashable], size: int) -> Iterator[tuple[int, ...]]:
    """
    Positions of ``size`` items, in lexicographic order, one combination for each way of counting neighbours of a kind.

    Neighbours of equal kind are interchangeable: a combination that skips one and takes the next says nothing new, and
    comes later than the one that takes the first. A kind that appears in two separate runs counts as two kinds.
    """
    chosen: list[int] = []

    def extend(start: int) -> Iterator[tuple[int, ...]]:
        if len(chosen) == size:
            yield tuple(chosen)
            return
        # The upper bound leaves enough items for the rest, so that no branch ends without a combination.
        for position in range(start, len(kinds) - (size - len(chosen)) + 1):
            # Skipping the first of a run and taking its neighbour gives the counts of a combination that came before.
            if position > start and kinds[position] == kinds[position - 1]:
                continue
            chosen.append(position)
            yield from extend(position + 1)
            chosen.pop()

    return extend(0)
