"""Images: those that a node reports, and those that a pod names. What is malformed about them is left out: they only attract."""

from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import islice
from typing import Any, Final

from koord_numa.core.objects.images import Image
from koord_numa.wire.parsing import Strict

MOST_IMAGES: Final = 256
"""So many images of a node are read: kubelets report 50 (``nodeStatusMaxImages``), the largest first, unless told otherwise."""

MOST_NAMES: Final = 8
LONGEST_NAME: Final = 512


class ContainerImage(Strict):
    """What a container says about its image. It is read without this model, as it never makes a pod malformed."""

    image: str | None = None


def node_images(status: object) -> frozenset[Image]:
    """What ``status.images`` of a node says."""
    listed = status.get("images") if isinstance(status, Mapping) else None
    if not isinstance(listed, list):
        return _NONE
    return frozenset(image for each in islice(listed, MOST_IMAGES) if (image := _image(each)) is not None)


def pod_images(spec: Mapping[str, Any]) -> tuple[str, ...]:
    """
    One normalised name for each init container, container and image volume; an empty one where it names no image.

    As ``imagelocality/image_locality.go`` (``sumImageScores``).
    """
    # Init containers first, as upstream sums them; their order does not matter to the score.
    named = [each.get("image") for key in ("initContainers", "containers") for each in _items(spec, key)]
    volumes = (each.get("image") for each in _items(spec, "volumes"))
    named += [volume.get("reference") for volume in volumes if isinstance(volume, Mapping)]
    return tuple(normalized(name) if isinstance(name, str) and len(name) <= LONGEST_NAME else "" for name in named)


@lru_cache(maxsize=8192)
def normalized(name: str) -> str:
    """A name without a tag or digest means the tag ``latest`` (``normalizedImageName``); a colon before a slash is a port."""
    # A colon after the last slash begins a tag or digest; one before it begins a port.
    return f"{name}:latest" if name and name.rfind(":") <= name.rfind("/") else name


def _image(listed: object) -> Image | None:
    if not isinstance(listed, Mapping):
        return None
    names, size = listed.get("names"), listed.get("sizeBytes") or 0
    # Beyond 2**62 the size could not be summed in 64 bits.
    if not isinstance(names, list) or not isinstance(size, int) or not 0 < size < 1 << 62:
        return None
    kept = tuple(name for name in names[:MOST_NAMES] if isinstance(name, str) and len(name) <= LONGEST_NAME)
    return _shared(kept, int(size)) if kept else None


@lru_cache(maxsize=8192)
def _shared(names: tuple[str, ...], size: int) -> Image:
    """Nodes that have the same image share one value."""
    return Image(names, size)


def _items(spec: Mapping[str, Any], key: str) -> Iterable[Mapping[str, Any]]:
    listed = spec.get(key)
    return [each for each in listed if isinstance(each, Mapping)] if isinstance(listed, list) else ()


_NONE: Final[frozenset[Image]] = frozenset()
