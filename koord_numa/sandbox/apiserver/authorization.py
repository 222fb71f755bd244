"""RBAC authorization with the stored roles and bindings, and responses to TokenReviews and SubjectAccessReviews."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final

from koord_numa.sandbox.apiserver.backend import Backend, Target
from koord_numa.sandbox.apiserver.documents import JsonObject, dig, metadata_of
from koord_numa.sandbox.apiserver.errors import ApiError
from koord_numa.sandbox.apiserver.faults import Asked, Faults
from koord_numa.sandbox.apiserver.kinds import Kind

_GROUP: Final = "rbac.authorization.k8s.io"
_VERSION: Final = "v1"
_ACCOUNT: Final = "system:serviceaccount:"
_ALL: Final = "*"


@dataclass(frozen=True, slots=True)
class Attributes:
    """A request for a resource, like ``authorizer.Attributes`` of kube-apiserver."""

    user: str
    verb: str
    group: str
    resource: str
    subresource: str = ""
    namespace: str = ""
    name: str = ""

    @property
    def full_resource(self) -> str:
        """The resource as it is written in rules: ``pods/binding``."""
        return f"{self.resource}/{self.subresource}" if self.subresource else self.resource


class Authorizer:
    """RBAC authorizer. It evaluates roles and bindings on every request, so their changes take effect immediately."""

    def __init__(self, backend: Backend) -> None:
        self._backend = backend

    def check(self, asked: Attributes) -> None:
        """Raise the 403 error of kube-apiserver unless a role grants the request."""
        if any(_grants(rule, asked) for rule in self._rules(asked.user, asked.namespace)):
            return
        qualified = f"{asked.resource}.{asked.group}" if asked.group else asked.resource
        where = f'in the namespace "{asked.namespace}"' if asked.namespace else "at the cluster scope"
        message = (
            f'{qualified} "{asked.name}" is forbidden: User "{asked.user}" cannot {asked.verb} resource '
            f'"{asked.full_resource}" in API group "{asked.group}" {where}'
        )
        details = {"name": asked.name, "group": asked.group, "kind": asked.resource}
        raise ApiError(403, "Forbidden", message, {key: value for key, value in details.items() if value})

    def _rules(self, user: str, namespace: str) -> Iterator[JsonObject]:
        for binding in self._objects("clusterrolebindings"):
            if _is_bound(binding, user):
                yield from self._rules_of(binding, "")
        for binding in self._objects("rolebindings") if namespace else ():
            if metadata_of(binding).get("namespace") == namespace and _is_bound(binding, user):
                yield from self._rules_of(binding, namespace)

    def _rules_of(self, binding: JsonObject, namespace: str) -> Iterable[JsonObject]:
        reference = binding.get("roleRef") or {}
        plural = "roles" if reference.get("kind") == "Role" else "clusterroles"
        kind = self._backend.registry.named(f"{plural}.{_GROUP}")
        role = self._backend.find(
            Target(kind, _VERSION, namespace if kind.namespaced else "", str(reference.get("name") or ""))
        )
        return () if role is None else role.load().get("rules") or ()

    def _objects(self, plural: str) -> Iterator[JsonObject]:
        for record in self._backend.table(self._backend.registry.named(f"{plural}.{_GROUP}")):
            yield record.load()


def _is_bound(binding: JsonObject, user: str) -> bool:
    groups = {"system:authenticated"}
    if user.startswith(_ACCOUNT):
        groups |= {"system:serviceaccounts", f"system:serviceaccounts:{user.removeprefix(_ACCOUNT).partition(':')[0]}"}
    for subject in binding.get("subjects") or ():
        kind, name = subject.get("kind"), subject.get("name")
        account = f"{_ACCOUNT}{subject.get('namespace')}:{name}"
        if (
            (kind == "User" and name == user)
            or (kind == "Group" and name in groups)
            or (kind == "ServiceAccount" and account == user)
        ):
            return True
    return False


def _grants(rule: JsonObject, asked: Attributes) -> bool:
    """Report whether a rule grants the request (``RuleAllows`` of plugin/pkg/auth/authorizer/rbac).

    A rule with ``resourceNames`` grants no request without a name.
    """
    resources = (_ALL, asked.full_resource, *((f"*/{asked.subresource}",) if asked.subresource else ()))
    return (
        _contains(rule, "verbs", (_ALL, asked.verb))
        and _contains(rule, "apiGroups", (_ALL, asked.group))
        and _contains(rule, "resources", resources)
        and (not rule.get("resourceNames") or asked.name in rule["resourceNames"])
    )


def _contains(rule: JsonObject, field: str, accepted: tuple[str, ...]) -> bool:
    return not set(accepted).isdisjoint(rule.get(field) or ())


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
