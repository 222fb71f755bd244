"""
Nodes that have a pod's images already start it sooner (kube-scheduler's ImageLocality, ``imagelocality/image_locality.go``).

An image counts by its size and by the share of nodes that have it: one that is on few nodes attracts hardly, so that the first node which
pulled an image does not get every pod that uses it.
"""

from collections.abc import Mapping
from typing import Final

from koord_numa.core.objects.images import PodImages
from koord_numa.core.objects.node import Node
from koord_numa.core.score.node_resources import MAX_SCORE

MIB: Final = 1 << 20

LEAST: Final = 23 * MIB
"""Images that add up to less than this are pulled at once, and count for nothing."""

MOST: Final = 1000 * MIB
"""What counts of one container at most; both bounds are kube-scheduler's."""


def score_images(node: Node, images: PodImages) -> int:
    """
    0 where the node has none of the images (or only small ones), 100 where it has all and they are large, on every node.

    A size is the node's own word; kube-scheduler takes that of the node which reported the name first.
    """
    sizes = sizes_on(node, frozenset(images.names))
    return points(sum(scaled(sizes[name], images, name) for name in images.names if name in sizes), len(images.names))


def sizes_on(node: Node, wanted: frozenset[str]) -> Mapping[str, int]:
    """The size in bytes of those of the wanted images that the node has, by the wanted name."""
    return {name: image.size for image in node.images for name in image.names if name in wanted}


def scaled(size: int, images: PodImages, name: str) -> int:
    """The size, scaled by the share of nodes that have the image (``scaledImageScore``)."""
    # Truncated like upstream's ``int64(float64(size) * spread)``.
    return int(size * (images.nodes.get(name, 0) / images.total)) if images.total else 0


def points(total: int, containers: int) -> int:
    """The scaled sizes of all images as 0 to 100 (``calculatePriority``)."""
    most = MOST * containers
    # Bounds scale with the number of containers, as the sizes of their images add up.
    return MAX_SCORE * (min(max(total, LEAST), most) - LEAST) // (most - LEAST) if containers else 0
