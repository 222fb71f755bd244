"""Responses to TokenReviews, SubjectAccessReviews and the reviews about the requesting user."""

from typing import Any, Final

from koord_numa.sandbox.apiserver.errors import ApiError
from koord_numa.sandbox.apiserver.faults import Faults
from koord_numa.sandbox.apiserver.objects.documents import JsonObject, dig
from koord_numa.sandbox.apiserver.objects.kinds import Kind
from koord_numa.sandbox.apiserver.rules.authorization import Attributes, Authorizer
from koord_numa.sandbox.apiserver.serving.request_log import Asked

USER: Final = "sandbox"


USER_BY_BEARER: Final = "sandbox:"


GROUPS: Final = ("system:masters", "system:authenticated")


ABOUT_ONESELF: Final = frozenset({"selfsubjectaccessreviews", "selfsubjectreviews", "selfsubjectrulesreviews"})
"""Resources that every user may create (``system:basic-user``)."""


_BEARER: Final = "Bearer "


def user_of(authorization: str) -> str:
    """Return the user of an ``Authorization`` header, empty for the administrator."""
    token = authorization.removeprefix(_BEARER)
    if token == authorization or not token.startswith(USER_BY_BEARER):
        return ""
    return token.removeprefix(USER_BY_BEARER)


def attributes(user: str, asked: Asked) -> Attributes:
    """Return the authorization attributes of a request by ``user``."""
    return Attributes(user, asked.verb, asked.group, asked.resource, asked.subresource, asked.namespace, asked.name)


def answer_review(kind: Kind, review: JsonObject, faults: Faults, authorizer: Authorizer, user: str) -> JsonObject:
    """Return the review with its status. Reviews are not stored. ``user`` is the requesting user."""
    if kind.kind == "SelfSubjectReview":
        who = (
            {"username": user, "groups": ["system:authenticated"]} if user else {"username": USER, "groups": [*GROUPS]}
        )
        status: JsonObject = {"userInfo": who}
    elif kind.kind == "SelfSubjectRulesReview":
        status = {
            "resourceRules": [{"verbs": ["*"], "apiGroups": ["*"], "resources": ["*"]}],
            "nonResourceRules": [{"verbs": ["*"], "nonResourceURLs": ["*"]}],
            "incomplete": False,
        }
    elif kind.kind == "TokenReview":
        status = _token_status(str(dig(review, "spec", "token") or ""))
    elif kind.kind == "SelfSubjectAccessReview" and user and dig(review, "spec", "resourceAttributes"):
        status = _own_access(authorizer, user, _asked(dig(review, "spec", "resourceAttributes")))
    else:
        asked = _asked(dig(review, "spec", "resourceAttributes") or _path(dig(review, "spec", "nonResourceAttributes")))
        denied = faults.denies(asked)
        status = {"allowed": not denied, "reason": "denied on demand" if denied else "the sandbox allows everything"}
    return {**review, "status": status}


def _own_access(authorizer: Authorizer, user: str, asked: Asked) -> JsonObject:
    try:
        authorizer.check(attributes(user, asked))
    except ApiError as denied:
        return {"allowed": False, "reason": denied.message}
    return {"allowed": True}


def _token_status(token: str) -> JsonObject:
    name = token.removeprefix(USER_BY_BEARER)
    if name == token or not name:
        return {"authenticated": False, "error": "the sandbox does not know this token"}
    return {"authenticated": True, "user": {"username": name, "uid": f"uid-{name}", "groups": ["system:authenticated"]}}


def _path(attributes: Any) -> JsonObject:
    """Return the attributes of a non-resource request with the path as the resource."""
    found = attributes if isinstance(attributes, dict) else {}
    return {"verb": found.get("verb"), "resource": found.get("path")}


def _asked(attributes: Any) -> Asked:
    verb, group, version, resource, subresource, namespace, name = (
        str(attributes.get(field) or "")
        for field in ("verb", "group", "version", "resource", "subresource", "namespace", "name")
    )
    return Asked(verb, group, version, resource, subresource, namespace, name)
