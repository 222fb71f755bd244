"""Namespaces as pod affinity sees them: a name and its labels."""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class Namespace:
    """What a ``namespaceSelector`` of an affinity term looks at."""

    name: str
    labels: Mapping[str, str] = field(default_factory=dict)
    problem: str = ""
