"""Container images as nodes report them, and as pods name them."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Image:
    """An image that a node has: every name under which it is known there (tags and digests), and its size in bytes."""

    names: tuple[str, ...]
    size: int


@dataclass(frozen=True, slots=True)
class PodImages:
    """
    The images of a pod that waits: ``names`` has one for each of its containers, init containers and image volumes, in that order, and
    ``nodes`` on how many of the ``total`` nodes of the cluster each is.
    """

    names: tuple[str, ...]
    total: int
    nodes: Mapping[str, int] = field(default_factory=dict)
