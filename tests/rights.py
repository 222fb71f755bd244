"""
Requests of the scheduler to an API server during the tests, compared with the permissions of the deployment.

A plugin of pytest: every embedded server of the run tells it who asked for what; workers of a parallel run hand their part to the
main process, and there the whole is judged. A right that is used and not granted is always wrong. One that is granted and not
used is wrong in ``make system`` (``--all-rights``), which has a test of every right.

The main process of a parallel run does not import the scheduler, so that its workers start 2 seconds earlier.
"""

from collections.abc import Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import pytest
import yaml

from koord_numa import __version__

if TYPE_CHECKING:
    from koord_numa.sandbox.apiserver import Asked, RequestLog

RBAC: Final = Path(__file__).parents[1] / "deploy" / "kustomize" / "base" / "rbac.yaml"
AGENT: Final = f"koord-numa/{__version__} (scheduler)"
AGENTS: Final = (AGENT, "kopf/")
"""User agents of the scheduler's own client and of Kopf. Tests and the command line use other names."""

TOLD: Final = "rights"

WITHOUT_MANIFESTS: Final = frozenset({("create", "", "namespaces")})
"""Rights that only a scheduler without a namespace for its Lease uses: the deployment creates the namespace."""

IMPLIED: Final = frozenset({("update", "resource.k8s.io", "resourceclaims/binding"), ("update", "", "pods/finalizers")})
"""
Rights that the API server checks without a request that names them: changes of allocations and reservations, and owners that wait for what
they own.
"""

Right: TypeAlias = tuple[str, str, str]
"""Verb, group, resource[/subresource]."""


def right_of(asked: "Asked") -> Right | None:
    """Return the right that this request needs; ``None`` for requests without a kind, such as discovery."""
    if not asked.resource or not asked.user_agent.startswith(AGENTS):
        return None
    subresource = f"/{asked.subresource}" if asked.subresource else ""
    return asked.verb, asked.group, asked.resource + subresource


def granted(manifests: Iterable[dict[str, Any]]) -> set[Right]:
    """Everything that the roles among these manifests allow."""
    rules = [rule for manifest in manifests if manifest["kind"].endswith("Role") for rule in manifest["rules"]]
    return {
        (verb, group, resource)
        for rule in rules
        for verb in rule["verbs"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
    }


def judge(used: set[Right], allowed: set[Right], *, all_run: bool) -> list[str]:
    """Return the errors, a line each."""
    found = [f"used and not granted: {say(right)}" for right in sorted(used - allowed - WITHOUT_MANIFESTS)]
    if all_run:
        found += [f"granted and never used: {say(right)}" for right in sorted(allowed - used - IMPLIED)]
    return found


def say(right: Right) -> str:
    """As a person would ask for it."""
    verb, group, resource = right
    return f"{verb} {resource}.{group}" if group else f"{verb} {resource}"


class Witness:
    """Registered once in every process of a run."""

    def __init__(self) -> None:
        self._by_server: dict[RequestLog, dict[str, set[Right]]] = {}
        self._of_workers: set[Right] = set()
        self.complaints: list[str] = []
        self.untouched: set[Right] = set()

    @property
    def used(self) -> set[Right]:
        """Return the rights that schedulers used. Without a scheduler of this package, the requests are a test of Kopf itself."""
        found = set(self._of_workers)
        for agents in self._by_server.values():
            if agents[AGENT]:
                found = found.union(*agents.values())
        return found

    def pytest_sessionstart(self, session: pytest.Session) -> None:
        """Hear of every request to any embedded server of this process, unless its workers run the tests."""
        if session.config.getoption("dist", "no") != "no" and not hasattr(session.config, "workerinput"):
            return
        from koord_numa.sandbox.apiserver import RequestLog  # noqa: PLC0415  (the main process does without)

        witness, add = self, RequestLog.add

        def heard(log: RequestLog, asked: "Asked") -> None:
            right = right_of(asked)
            if right is not None:
                agents = witness._by_server.setdefault(log, {agent: set() for agent in AGENTS})
                agents[next(agent for agent in AGENTS if asked.user_agent.startswith(agent))].add(right)
            add(log, asked)

        RequestLog.add = heard  # type: ignore[method-assign, assignment]  # every server of every test, without each knowing of it

    @pytest.hookimpl(optionalhook=True)
    def pytest_testnodedown(self, node: Any) -> None:
        """A worker of pytest-xdist has ended."""
        self._of_workers |= {tuple(right) for right in getattr(node, "workeroutput", {}).get(TOLD, ())}

    @pytest.hookimpl(trylast=True)
    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        """Workers tell the main process; the main process judges."""
        if hasattr(session.config, "workeroutput"):
            session.config.workeroutput[TOLD] = sorted(self.used)
            return
        all_run = session.config.getoption("--all-rights") and not session.exitstatus
        allowed = granted(document for document in yaml.safe_load_all(RBAC.read_text()) if document)
        self.complaints = judge(self.used, allowed, all_run=all_run)
        self.untouched = allowed - self.used
        if self.complaints and not session.exitstatus:
            session.exitstatus = pytest.ExitCode.TESTS_FAILED

    def pytest_terminal_summary(self, terminalreporter: Any) -> None:
        """Print the errors, or the number of compared rights."""
        if self.used:
            terminalreporter.section("rights of the scheduler")
            for line in self.complaints or [f"{len(self.used)} in use, none more than granted"]:
                terminalreporter.write_line(line)
            if self.untouched:
                terminalreporter.write_line(f"not in use: {', '.join(map(say, sorted(self.untouched)))}")
