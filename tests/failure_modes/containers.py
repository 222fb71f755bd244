"""Sizes of all containers that are reachable from an object, except caches and deques with their own bound."""

from collections import Counter, deque
from collections.abc import Iterator, Mapping
from typing import Any

from cachetools import Cache
from numpy import ndarray

OURS = "koord_numa"
SAMPLED = 200
"""Items of one container that are looked into."""


def container_sizes(root: object) -> dict[str, int]:
    """
    Sums of lengths, by the path of attributes that leads there; items of containers share a path.

    Only attributes of our own classes are followed; frozen dataclasses are values, as large as what was put into them.
    """
    sizes: Counter[str] = Counter()
    seen: set[int] = set()
    waiting = deque([("", root)])
    while waiting:
        path, value = waiting.popleft()
        if id(value) in seen or isinstance(value, Cache | str | bytes | int | float):
            continue
        if isinstance(value, deque) and value.maxlen is not None:
            continue
        seen.add(id(value))
        if isinstance(value, Mapping | list | set | deque | tuple | frozenset | ndarray):
            sizes[path] += len(value)
            items = value.values() if isinstance(value, Mapping) else () if isinstance(value, ndarray) else value
            waiting.extend((f"{path}[]", item) for item, _ in zip(list(items), range(SAMPLED), strict=False))
        elif type(value).__module__.startswith(OURS):
            waiting.extend((f"{path}.{name}", inner) for name, inner in _attributes(value))
    return dict(sizes)


def most(before: int) -> int:
    """Return the largest permitted size of a container with this earlier size. Rarely swept containers vary."""
    return 2 * before + 128


def _attributes(value: Any) -> Iterator[tuple[str, Any]]:
    names = {name for each in type(value).__mro__ for name in getattr(each, "__slots__", ())} | set(
        getattr(value, "__dict__", ())
    )
    names.discard(
        "__weakref__"
    )  # not a container, and Python 3.11.2 raises TypeError for this slot of some dataclasses
    for name in sorted(names):
        if hasattr(value, name):
            yield name, getattr(value, name)
