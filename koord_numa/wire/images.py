"""Parse the images of nodes and pods. Malformed entries are ignored, since images only affect the score."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from koord_numa.core.objects.node import Image
from koord_numa.wire.parsing import Strict

MOST_IMAGES: Final = 256
"""Maximum images read per node. Kubelets report 50 by default (``nodeStatusMaxImages``), the largest first."""

MOST_NAMES: Final = 8
LONGEST_NAME: Final = 512


class ContainerImage(Strict):
    """The image of a container. Images are parsed without this model, since they never make a pod malformed."""

    image: str | None = None


def node_images(status: object) -> frozenset[Image]:
    """Return the images in ``status.images`` of a node."""
    listed = status.get("images") if isinstance(status, Mapping) else None
    if not isinstance(listed, list):
        return _NONE
    return frozenset(image for each in islice(listed, MOST_IMAGES) if (image := _image(each)) is not None)


def pod_images(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """
    Return the normalized image name of each init container, container and image volume.

    The name is empty where no image is given. As ``sumImageScores`` in ``imagelocality/image_locality.go``.
    """
    # Init containers first, as upstream sums them; their order does not matter to the score.
    named = [each.get("image") for key in ("initContainers", "containers") for each in _items(spec, key)]
    volumes = (each.get("image") for each in _items(spec, "volumes"))
    named += [volume.get("reference") for volume in volumes if isinstance(volume, Mapping)]
    return tuple(normalized(name) if isinstance(name, str) and len(name) <= LONGEST_NAME else "" for name in named)


@lru_cache(maxsize=8192)
def normalized(name: str) -> str:
    """Return the image name, with the tag ``latest`` if it has neither tag nor digest (``normalizedImageName``)."""
    # A colon after the last slash begins a tag or digest; one before it begins a port.
    return f"{name}:latest" if name and name.rfind(":") <= name.rfind("/") else name


def _image(listed: object) -> Image | None:
    if not isinstance(listed, Mapping):
        return None
    names, size = listed.get("names"), listed.get("sizeBytes") or 0
    # Sizes from 2**62 could not be summed in 64 bits.
    if not isinstance(names, list) or not isinstance(size, int) or not 0 < size < 1 << 62:
        return None
    kept = tuple(name for name in names[:MOST_NAMES] if isinstance(name, str) and len(name) <= LONGEST_NAME)
    return _shared(kept, int(size)) if kept else None


@lru_cache(maxsize=8192)
def _shared(names: tuple[str, ...], size: int) -> Image:
    """Return the image. Nodes with the same image share one value."""
    return Image(names, size)


def _items(spec: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    listed = spec.get(key)
    return [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else ()


_NONE: Final[frozenset[Image]] = frozenset()
