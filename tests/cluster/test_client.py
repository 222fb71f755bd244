"""Every way a request can end has its error."""

from pathlib import Path
from urllib.parse import urlencode

import pytest
from aiohttp import ClientTimeout
from yarl import URL

from koord_numa.cluster import client
from koord_numa.cluster.client import Api, Body
from koord_numa.cluster.credentials import Credentials, NoCredentials, token_file
from koord_numa.cluster.resources import NODES, PODS, Call, Expired
from koord_numa.ports import (
    ClusterError,
    Conflict,
    Forbidden,
    Gone,
    Invalid,
    Unauthenticated,
    Unavailable,
    UnknownOutcome,
)
from koord_numa.sandbox.apiserver import ApiServer, Effect, Fault
from tests.cluster.objects import node, pod
from tests.tables import each_row

READ = Call("list", PODS)
WRITE = Call("create", PODS, "default")


@pytest.mark.parametrize(
    ("status", "reading", "writing"),
    [
        (400, Invalid, Invalid),
        (401, Unauthenticated, Unauthenticated),
        (403, Forbidden, Forbidden),
        (404, Gone, Gone),
        (409, Conflict, Conflict),
        (410, Expired, Expired),
        (422, Invalid, Invalid),
        (429, Unavailable, Unavailable),
        (500, Unavailable, UnknownOutcome),
        (502, Unavailable, UnknownOutcome),
        (503, Unavailable, Unavailable),
        (504, Unavailable, UnknownOutcome),
    ],
)
async def test_each_status_has_its_error(
    server: ApiServer, api: Api, status: int, reading: type[ClusterError], writing: type[ClusterError]
) -> None:
    server.faults.add(Fault(status=status))
    with pytest.raises(reading) as read:
        await api.send(READ)
    assert type(read.value) is reading
    with pytest.raises(writing) as written:
        await api.send(WRITE, Body(pod("a")))
    assert type(written.value) is writing


async def test_credentials_that_cannot_be_read_for_a_moment_are_no_bug(api: Api, tmp_path: Path) -> None:
    """A token file that is empty while it is being written."""

    path = tmp_path / "token"
    path.touch()
    api.credentials.authorization = token_file(path)
    with pytest.raises(Unavailable, match="empty"):
        await api.send(READ)


async def test_an_unused_session_is_closed_with_the_rest(api: Api) -> None:
    """Kopf asks for one after a 401, and may end before it uses it."""
    session, used = await api.new_session(), await api.new_session()
    await used.close()
    await api.close()
    late = await api.new_session()
    await api.close()
    assert session.closed
    assert late.closed


async def test_a_refusal_names_the_rule(server: ApiServer, api: Api) -> None:
    server.faults.add(Fault(status=403))
    with pytest.raises(Forbidden) as refused:
        await api.send(Call("create", PODS, "default", "a", "binding"), Body({}))
    assert refused.value.rule == "create pods/binding"


async def test_overload_carries_what_the_server_asked_for(server: ApiServer, api: Api) -> None:
    server.faults.add(Fault(status=429, retry_after=7))
    with pytest.raises(Unavailable) as refused:
        await api.send(READ)
    assert refused.value.retry_after == 7.0


@pytest.mark.parametrize(
    ("effect", "reading", "writing"),
    [(Effect.DROP, Unavailable, UnknownOutcome), (Effect.LOSE_ANSWER, Unavailable, UnknownOutcome)],
)
async def test_a_broken_connection_leaves_only_writes_open(
    server: ApiServer, api: Api, effect: Effect, reading: type[ClusterError], writing: type[ClusterError]
) -> None:
    server.faults.add(Fault(effect=effect))
    with pytest.raises(reading):
        await api.send(READ)
    with pytest.raises(writing):
        await api.send(WRITE, Body(pod("a")))


async def test_what_was_never_sent_is_no_open_outcome(server: ApiServer, api: Api) -> None:
    await server.stop()
    with pytest.raises(Unavailable):
        await api.send(WRITE, Body(pod("a")))


@pytest.mark.parametrize(("call", "error"), [(READ, Unavailable), (WRITE, UnknownOutcome)], ids=["read", "write"])
async def test_an_answer_that_does_not_come_in_time(
    server: ApiServer, api: Api, monkeypatch: pytest.MonkeyPatch, call: Call, error: type[ClusterError]
) -> None:
    monkeypatch.setattr(client, "LIMITS", ClientTimeout(total=0.05))
    server.faults.add(Fault(effect=Effect.DELAY, seconds=None))
    with pytest.raises(error):
        await api.send(call, Body(pod("a")) if call.writes else None)


async def test_whole_objects_come_back(server: ApiServer, api: Api) -> None:
    created = await api.send(Call("create", NODES), Body(node("a")))
    assert created == server.store.get("nodes", "a")
    assert await api.send(Call("get", NODES, name="a")) == created


async def test_what_is_asked_arrives_as_it_was_meant(server: ApiServer, api: Api) -> None:
    """Names and parameters are quoted once, and taken apart by the server only."""
    for name in ("a%2Fb", "a/b?c=d#e", "ä b+c"):
        with pytest.raises((Gone, Invalid)):
            await api.send(Call("get", NODES, name=name), params={"fieldManager": "a&b=c +ä"})
    assert [asked.name for asked in server.requests] == ["a%2Fb", "a/b?c=d#e", "ä b+c"]
    selected = {"fieldSelector": "metadata.name!=a,metadata.name!=c"}
    server.store.create(node("a"))
    server.store.create(node("b"))
    assert [it["metadata"]["name"] for it in (await api.send(Call("list", NODES), params=selected))["items"]] == ["b"]


@pytest.mark.parametrize("url", ["http://[::1", "http://", "http://a b"])
async def test_an_address_that_is_none_is_no_bug(url: str) -> None:
    async with Api(Credentials(url)) as api:
        for call in (READ, WRITE):
            with pytest.raises((Unavailable, UnknownOutcome)):
                await api.send(call, Body(pod("a")) if call.writes else None)


@each_row(
    "server",
    ["http://[::1]:8080", "https://example:6443", "http://a:b@c/", "https://proxy/k8s/clusters/c-1/", "http://d/%2F"],
)
@each_row("params", [None, {"timeout": "1s", "fieldManager": "a&b=c +ä"}])
async def test_an_address_is_that_of_the_server_and_the_quoted_path(server: str, params: dict[str, str] | None) -> None:
    call = Call("get", PODS, "default", "a b/c")
    async with Api(Credentials(server)) as api:
        text = f"{server.rstrip('/')}{call.path}" + (f"?{urlencode(params)}" if params else "")
        assert api._url(call, urlencode(params or {})) == URL(text, encoded=True)


async def test_a_host_may_have_letters_of_any_alphabet() -> None:
    async with Api(Credentials("http://bücher.example/")) as api:
        assert api.server == "http://xn--bcher-kva.example"


async def test_requests_say_who_we_are(server: ApiServer, api: Api) -> None:
    await api.send(READ)
    assert {asked.user_agent.partition("/")[0] for asked in server.requests} == {"koord-numa"}


async def test_without_credentials_there_is_no_connection(tmp_path: Path) -> None:
    with pytest.raises(NoCredentials, match=r"no credentials for a cluster: there is no file .*missing"):
        await Api.connect(tmp_path / "missing")


@pytest.mark.parametrize("text", ["", "[]", "a text", "{a: [", "{}", "{current-context: x}", "\x00"])
async def test_a_file_that_is_no_kubeconfig_is_said(tmp_path: Path, text: str) -> None:
    (tmp_path / "kubeconfig").write_text(text)
    with pytest.raises(NoCredentials, match="no credentials for a cluster: "):
        await Api.connect(tmp_path / "kubeconfig")


async def test_of_several_kubeconfigs_those_that_exist_count(
    server: ApiServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    there = server.write_kubeconfig(tmp_path / "kubeconfig")
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{there}")
    api = await Api.connect(None)
    await api.close()
    monkeypatch.setenv("KUBECONFIG", f"{tmp_path / 'missing'}:{tmp_path / 'absent'}")
    with pytest.raises(NoCredentials, match=r"missing or .*absent"):
        await Api.connect(None)


async def test_a_token_of_the_kubeconfig_is_sent(tmp_path: Path) -> None:
    kubeconfig = tmp_path / "kubeconfig"
    kubeconfig.write_text(
        "{apiVersion: v1, kind: Config, current-context: c,"
        " contexts: [{name: c, context: {cluster: k, user: u}}],"
        " clusters: [{name: k, cluster: {server: 'http://127.0.0.1:1'}}],"
        " users: [{name: u, user: {token: secret}}]}"
    )
    async with await Api.connect(kubeconfig) as api:
        headers: dict[str, str] = {}
        await api._authenticate(headers)
    assert headers == {"Authorization": "Bearer secret"}
