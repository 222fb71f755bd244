"""Names for objects that ask for one with ``generateName``."""

import secrets
from typing import Final

_ALPHABET: Final = "bcdfghjklmnpqrstvwxz2456789"  # without vowels and look-alikes, as k8s.io/apimachinery util/rand
_SUFFIX: Final = 5
_LONGEST: Final = 63


def generated_name(base: str) -> str:
    """The base with five random characters; a long base is cut so that the name stays a DNS label."""
    return base[: _LONGEST - _SUFFIX] + "".join(secrets.choice(_ALPHABET) for _ in range(_SUFFIX))
