"""Questions about permissions: everything is allowed, except what a fault of status 403 denies."""

from typing import Any, Final

from koord_numa.sandbox.apiserver.documents import JsonObject, dig
from koord_numa.sandbox.apiserver.faults import Faults
from koord_numa.sandbox.apiserver.kinds import Kind
from koord_numa.sandbox.apiserver.request_log import Asked

USER: Final = "sandbox"
GROUPS: Final = ("system:masters", "system:authenticated")


def answer(kind: Kind, review: JsonObject, faults: Faults) -> JsonObject:
    """The review with its status filled in; reviews are answered and never stored."""
    if kind.kind == "SelfSubjectReview":
        status: JsonObject = {"userInfo": {"username": USER, "groups": list(GROUPS)}}
    elif kind.kind == "SelfSubjectRulesReview":
        status = {
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        }
    else:
        asked = _asked(dig(review, "spec", "resourceAttributes") or {})
        denied = faults.denies(asked)
        status = {"allowed": not denied, "reason": "denied on demand" if denied else "the sandbox allows everything"}
    return {**review, "status": status}


def _asked(attributes: Any) -> Asked:
    verb, group, version, resource, subresource, namespace, name = (
        str(attributes.get(field) or "")
        for field in ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    )
    return Asked(verb, group, version, resource, subresource, namespace, name)
