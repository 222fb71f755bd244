"""
Random hints, exclusivities and distances on small machines, for the laws of the merge.

Each strategy is made once for a set of NUMA nodes: making one costs as much as drawing from it.
"""

from functools import cache

from hypothesis import strategies as st

from koord_numa.core.numa.hints import Distances, Hint, mask_of, numa_ids

IDS = st.one_of(
    st.integers(1, 5).map(lambda count: list(range(count))),
    st.lists(st.integers(0, 63), min_size=1, max_size=4, unique=True).map(sorted),  # machines with gaps
)


@cache
def subsets(nodes: int) -> st.SearchStrategy[int]:
    """A non-empty set of NUMA nodes."""
    return st.lists(st.sampled_from(list(numa_ids(nodes))), min_size=1, unique=True).map(mask_of)


@cache
def hints(nodes: int) -> st.SearchStrategy[list[Hint]]:
    """A list as providers make it, or worse: repeats, mixed preferences, "any" in between."""
    masks = st.one_of(subsets(nodes), subsets(nodes), subsets(nodes), st.none())
    return st.lists(
        st.builds(Hint, masks, st.booleans(), st.sampled_from([False, False, False, True]), st.integers(0, 3)),
        min_size=1,
        max_size=6,
    )


@cache
def lists(nodes: int) -> st.SearchStrategy[list[list[Hint]]]:
    """Up to three resources: at most 216 combinations."""
    return st.lists(hints(nodes), max_size=3)


@cache
def distances(nodes: int) -> st.SearchStrategy[Distances]:
    """Costs in both directions, not necessarily equal."""
    ids = list(numa_ids(nodes))
    return st.fixed_dictionaries({(a, b): st.sampled_from([10, 11, 12, 20]) for a in ids for b in ids})
