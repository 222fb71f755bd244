"""Claims that were made for pods' extended resources, by pod, and the classes that serve these resources."""

from collections.abc import Iterable

from koord_numa.core.claims.claim import Classes
from koord_numa.core.claims.extended_resources import ClassByResource, Served, class_by_resource
from koord_numa.core.claims.resource_claim import ResourceClaim

ClaimKey = tuple[str, str]
"""Namespace and name."""


class ExtendedClaims:
    """Kept by ``ClaimLister``."""

    def __init__(self) -> None:
        self._classes: ClassByResource = {}
        self._by_pod: dict[str, dict[ClaimKey, ResourceClaim]] = {}

    def replace_classes(self, classes: Classes) -> None:
        """All DeviceClasses there are."""
        self._classes = class_by_resource(classes)

    def served(self, resources: Iterable[str]) -> Served:
        """Those of the resources that a class serves, with the class."""
        return tuple((name, self._classes[name]) for name in resources if name in self._classes)

    def of(self, pod: str) -> ResourceClaim | None:
        """
        The claim of a pod, by its uid (dynamicresources ``findExtendedResourceClaim``).

        There is one, unless two schedulers were at work: then the one with devices counts, which nothing else would give back.
        """
        found = self._by_pod.get(pod)
        if not found:
            return None
        return min(found.values(), key=lambda it: (it.deleting, it.allocation is None, it.name))

    def put(self, claim: ResourceClaim) -> None:
        """A claim that is new or has changed; others than those of pods' extended resources are left out."""
        if claim.extended and claim.owner:
            self._by_pod.setdefault(claim.owner, {})[claim.namespace, claim.name] = claim

    def drop(self, claim: ResourceClaim) -> None:
        """The claim is gone."""
        claims = self._by_pod.get(claim.owner, {})
        if claims.pop((claim.namespace, claim.name), None) is not None and not claims:
            del self._by_pod[claim.owner]
