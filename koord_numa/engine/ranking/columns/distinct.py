"""Each value of an array once. ``np.unique`` imports ``numpy.ma`` when it is first called, 40 ms for which all decisions would wait."""

import numpy as np
from numpy.typing import NDArray


def distinct(values: NDArray[np.int64]) -> NDArray[np.int64]:
    """The values, ascending."""
    ordered = np.sort(values)
    if len(ordered) < 2:
        return ordered
    first = np.ones(len(ordered), dtype=np.bool_)
    np.not_equal(ordered[1:], ordered[:-1], out=first[1:])
    found: NDArray[np.int64] = ordered[first]
    return found
