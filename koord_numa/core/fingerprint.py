"""Fingerprints of pods in a NodeResourceTopology: they show which pods ran when the exporter created it."""

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
    Return the fingerprint of pods given as ``(namespace, name)``. Independent of order, but not of repetition.

    Version v001 of k8stopologyawareschedwg/podfingerprint: the hash of a pod is the XXH64 of its name seeded with the
    XXH64 of its namespace. The fingerprint is the XXH64 of the hashes in ascending order, as little-endian words. UIDs
    are not included: a pod re-created under the same name has the same hash.
    """
    return fingerprint_of(pod_hash(namespace, name) for namespace, name in pods)


def pod_hash(namespace: str, name: str) -> int:
    """Return the contribution of a pod to a fingerprint."""
    return xxh64_intdigest(name.encode(), seed=xxh64_intdigest(namespace.encode()))


def fingerprint_of(pods: Iterable[int]) -> str:
    """Return the fingerprint of pods given by ``pod_hash``. Saves time when many sets of the same pods are compared."""
    # The order in which pods are listed is not part of the set.
    ascending = sorted(pods)
    whole = xxh64_intdigest(pack(f"<{len(ascending)}Q", *ascending))
    return f"{_PREFIX}{_VERSION}{whole:016x}"


def comparable(text: str) -> bool:
    """Return whether this is a fingerprint of the supported version."""
    match = _SHAPE.fullmatch(text)
    return match is not None and match.group(1) == _VERSION
