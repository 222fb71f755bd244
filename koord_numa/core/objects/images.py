"""Container images as reported by nodes and named by pods."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Image:
    """Image on a node: all its names (tags and digests), and its size in bytes."""

    names: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class PodImages:
    """
    Images of a waiting pod.

    ``names`` has one name for each container, init container and image volume, in that order. ``nodes`` is the number of nodes with the
    image, of ``total`` nodes in the cluster.
    """

    names: tuple[str, ...]
    total: int
    nodes: Mapping[str, int] = field(default_factory=dict)
