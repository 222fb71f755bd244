"""The pod fingerprint that exporters publish with a NodeResourceTopology: which pods the numbers speak of."""

import re
from collections.abc import Iterable
from struct import pack
from typing import Final

from xxhash import xxh64_intdigest

_PREFIX: Final = "pfp0"
_VERSION: Final = "v001"
_SHAPE: Final = re.compile(r"pfp0(v\d{3})([0-9a-f]{16})", re.ASCII)


def fingerprint(pods: Iterable[tuple[str, str]]) -> str:
    """
    The fingerprint of a set of pods given as ``(namespace, name)``; order does not matter, repetition does.

    Version v001 of k8stopologyawareschedwg/podfingerprint: each pod is the XXH64 of its name seeded with the XXH64 of
    its namespace; the whole is the XXH64 of these, ascending, as little-endian words. Uids are not part of it: a pod
    re-created under its name looks the same.
    """
    return fingerprint_of(pod_hash(namespace, name) for namespace, name in pods)


def pod_hash(namespace: str, name: str) -> int:
    """What one pod adds to a fingerprint."""
    return xxh64_intdigest(name.encode(), seed=xxh64_intdigest(namespace.encode()))


def fingerprint_of(pods: Iterable[int]) -> str:
    """As ``fingerprint``, of pods whose hashes are known: many sets of the same pods are compared."""
    # Ascending: the order in which pods are listed is no part of the set.
    ascending = sorted(pods)
    whole = xxh64_intdigest(pack(f"<{len(ascending)}Q", *ascending))
    return f"{_PREFIX}{_VERSION}{whole:016x}"


def comparable(text: str) -> bool:
    """Is this a fingerprint of the version that we can compute?"""
    match = _SHAPE.fullmatch(text)
    return match is not None and match.group(1) == _VERSION
