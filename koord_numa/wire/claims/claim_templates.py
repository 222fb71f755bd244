"""ResourceClaimTemplates: what claims the controller makes of them, for pods that exist only in a simulation."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from koord_numa.wire.metadata import head
from koord_numa.wire.parsing import Problems

_Json = dict[str, Any]
KIND: Final = "ResourceClaimTemplate"


@dataclass(frozen=True, slots=True)
class ClaimTemplate:
    """A template; ``claim`` is the body of the claims that are made of it."""

    namespace: str
    name: str
    claim: Mapping[str, Any]

    def claim_of(self, pod: Mapping[str, Any], entry: str) -> _Json:
        """The claim that the controller would make for an entry of a pod (resourceclaim controller, ``handleClaim``)."""
        name = str(pod.get("name"))
        owner = {"apiVersion": "v1", "kind": "Pod", "name": name, "uid": pod["uid"], "controller": True}
        theirs = self.claim.get("metadata")
        # Labels and annotations of the template are the claim's; name, namespace and owner are the controller's to set.
        metadata = {
            **(theirs if isinstance(theirs, Mapping) else {}),
            "name": f"{name}-{entry}",  # readable instead of generated: it exists in the simulation only
            "namespace": pod["namespace"],
            "uid": f"{pod['uid']}-{entry}",
            "ownerReferences": [owner],
        }
        return {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": metadata,
            "spec": self.claim.get("spec") or {},
        }


def parse_claim_template(obj: Mapping[str, Any]) -> ClaimTemplate:
    """
    The template in an API object. What is malformed in it is found in the claims that are made of it.

    Raises ``WireError`` when it has no name.
    """
    top = head(obj, KIND, Problems())
    spec = top.body.get("spec")
    return ClaimTemplate(top.namespace, top.name, spec if isinstance(spec, Mapping) else {})
