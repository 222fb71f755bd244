"""
Which nodes have which images, as points by row of the node table for the images of one pod.

A column exists for every image name that a waiting pod has named lately; it is filled when it is first asked for and kept up to date
afterwards. ``core.score.image_locality`` is the specification.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np
from cachetools import LRUCache

from koord_numa.core.objects.images import Image, PodImages
from koord_numa.core.score.node_scores import LEAST, MAX_SCORE, MOST
from koord_numa.engine.ranking.columns.node_numbers import Ints, longer

REMEMBERED_IMAGES: Final = 1024
REMEMBERED_PODS: Final = 256
"""Of so many image names the sizes are kept by row, and of so many lists of images the points."""

Column = Ints
"""Bytes by row; 0 where the node has no image of that name."""


class ImageColumns:
    """``version`` grows when a node comes or goes, or the images of one change."""

    def __init__(self, rows: int) -> None:
        self._rows = rows
        self._images: dict[int, frozenset[Image]] = {}  # by row that has a node
        self._columns: LRUCache[str, Column] = LRUCache(maxsize=REMEMBERED_IMAGES)
        self._points: LRUCache[tuple[str, ...], tuple[int, Ints | None]] = LRUCache(maxsize=REMEMBERED_PODS)
        self._any = 0  # rows that have images at all
        self.version = 0

    def write(self, row: int, images: frozenset[Image] | None) -> None:
        """Bring one row up to date; ``None`` when it has no node."""
        former = self._images.get(row)
        if former == images:
            return
        self.version += 1
        # An integer count of rows, since with no images at all every pod is answered at once.
        self._any += bool(images) - bool(former)
        if images is None:
            del self._images[row]
        else:
            self._images[row] = images
        # The number of nodes has changed and with it every share, but no column has anything to write.
        if not images and not former:
            return
        sizes = {name: image.size for image in images or () for name in image.names}
        for name, column in self._columns.items():
            column[row] = sizes.get(name, 0)

    def grow(self, rows: int) -> None:
        """Make room for more rows, which have no images yet."""
        self._rows = rows
        for name in list(self._columns):
            self._columns[name] = longer(self._columns[name], rows)

    def points(self, names: tuple[str, ...]) -> Ints | None:
        """By row, the points for a pod with these images; ``None`` when no node has any. Not to be changed."""
        if not self._any or not names:
            return None
        known = self._points.get(names)
        if known is None or known[0] != self.version:
            known = self._points[names] = (self.version, self._count(names))
        return known[1]

    def seen_by(self, names: tuple[str, ...]) -> PodImages:
        """The same for one node after the other: on how many nodes each image is."""
        columns = self._all(names) if self._any else {}
        return PodImages(
            names, len(self._images), {name: int(np.count_nonzero(column)) for name, column in columns.items()}
        )

    def _count(self, names: tuple[str, ...]) -> Ints | None:
        columns, nodes = self._all(names), len(self._images)
        total: Ints = np.zeros(self._rows, dtype=np.int64)
        for name in names:
            column = columns[name]
            share = int(np.count_nonzero(column)) / nodes
            total += (column * share).astype(np.int64)  # truncated image by image, as there
        # Below the lower bound all points are 0, and a constant tells no nodes apart.
        if int(total.max()) <= LEAST:
            return None
        most = MOST * len(names)
        return MAX_SCORE * (total.clip(LEAST, most) - LEAST) // (most - LEAST)

    def _all(self, names: tuple[str, ...]) -> Mapping[str, Column]:
        """The columns of these names; missing ones are filled in one pass."""
        found = {name: column for name in set(names) if (column := self._columns.get(name)) is not None}
        missing = {name: np.zeros(self._rows, dtype=np.int64) for name in set(names) - found.keys()}
        if missing:
            by_image: dict[Image, list[Column]] = {}
            # Distinct images first: nodes share most of them.
            for image in set().union(*self._images.values()):
                if columns := [missing[name] for name in image.names if name in missing]:
                    by_image[image] = columns
            for row, images in self._images.items() if by_image else ():
                for image in images & by_image.keys():
                    for column in by_image[image]:
                        column[row] = image.size
            self._columns.update(missing)
        return found | missing
