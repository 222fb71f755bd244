"""
The eight prepared cases with the operator running: what ``kubectl describe`` shows, ``explain`` and the page name the cause and a way out,
and the way out, when taken, places the pod.
"""

from pathlib import Path
from typing import Any

import pytest
from playwright.async_api import expect

from koord_numa.cli.demo.sandbox_cluster import SandboxCluster
from tests.cli.small import ask, small_cluster
from tests.cli.test_eight_cases import CASES, Case, one_line
from tests.cluster.objects import until
from tests.operator.operating import operating
from tests.view.browser import browser_page, chromium, in_chromium

pytestmark = [pytest.mark.e2e, *in_chromium]

__all__ = ["chromium"]  # a fixture that every test of this module uses


def shown_by_describe(cluster: SandboxCluster) -> str:
    """The condition and the events of the pod, as ``kubectl describe pod`` prints them."""
    pod = cluster.server.store.get("pods", "p", "default")
    conditions = [
        one.get("message", "") for one in pod["status"].get("conditions", ()) if one["type"] == "PodScheduled"
    ]
    events = cluster.server.store.list("events.events.k8s.io")
    notes = [one["note"] for one in events if one["regarding"]["name"] == "p" and one["reason"] == "FailedScheduling"]
    return one_line(" ".join([*conditions, *notes])) if conditions and notes else ""


def node_of(cluster: SandboxCluster) -> str:
    return str(cluster.server.store.get("pods", "p", "default")["spec"].get("nodeName") or "")


async def rebind(cluster: SandboxCluster) -> None:
    """Run the rebind that the text proposes for a fragmented node, by the command that it names."""
    done = await ask(cluster, "rebind", "own", "--wait")
    assert done.exit_code == 0, done.output


@pytest.mark.parametrize("name", [pytest.param(name, id=name.replace(" ", "-")) for name in CASES])
async def test_from_the_symptom_to_a_pod_that_runs(name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    case: Case = CASES[name]
    async with small_cluster(tmp_path, *case.others) as cluster:
        case.prepare(cluster)
        cluster.server.store.create(case.wanted)
        async with operating(cluster.server, tmp_path, monkeypatch) as runtime:
            await until(lambda: shown_by_describe(cluster))
            assert case.cause in shown_by_describe(cluster)
            url = f"http://127.0.0.1:{runtime.http_server.port}"
            explained = one_line((await ask(cluster, "explain", "p", "--scheduler", url)).output)
            assert case.cause in explained
            assert f"- {case.proposal}" in explained
            async with browser_page() as page:
                await page.goto(f"{url}/#/waiting")
                article: Any = page.locator("article.waiting")
                await expect(article).to_contain_text("default/p")
                await expect(article).to_contain_text(case.proposal)
                assert case.page_cause in one_line(await article.inner_text())
            if name == "fragmented node":
                await rebind(cluster)
            else:
                case.action(cluster)
            await until(lambda: node_of(cluster))
    assert case.proposal.count(node_of(cluster)) or name == "volume"
