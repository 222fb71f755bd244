"""
Questions about tokens and permissions.

A token ``sandbox:NAME`` belongs to the user NAME, any other to no user. Everything is allowed, except what a fault of status 403 denies;
the resource of such a fault is a path, such as ``/metrics``, where the question is about one.
"""

from typing import Any, Final

from koord_numa.sandbox.apiserver.faults import Faults
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dig
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.serving.request_log import Asked

USER: Final = "sandbox"
USER_BY_BEARER: Final = "sandbox:"
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
    elif kind.kind == "TokenReview":
        status = _token_status(str(dig(review, "spec", "token") or ""))
    else:
        asked = _asked(dig(review, "spec", "resourceAttributes") or _path(dig(review, "spec", "nonResourceAttributes")))
        denied = faults.denies(asked)
        status = {"allowed": not denied, "reason": "denied on demand" if denied else "the sandbox allows everything"}
    return {**review, "status": status}


def _token_status(token: str) -> JsonObject:
    name = token.removeprefix(USER_BY_BEARER)
    if name == token or not name:
        return {"authenticated": False, "error": "the sandbox does not know this token"}
    return {"authenticated": True, "user": {"username": name, "uid": f"uid-{name}", "groups": ["system:authenticated"]}}


def _path(attributes: Any) -> JsonObject:
    """A question about a path, as if the path were a resource."""
    found = attributes if isinstance(attributes, dict) else {}
    return {"verb": found.get("verb"), "resource": found.get("path")}


def _asked(attributes: Any) -> Asked:
    verb, group, version, resource, subresource, namespace, name = (
        str(attributes.get(field) or "")
        for field in ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    )
    return Asked(verb, group, version, resource, subresource, namespace, name)
