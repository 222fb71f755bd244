"""Users with the auth-provider OIDC, as client-go authenticates them."""

import base64
import io
import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs
from urllib.request import Request

import pytest
import yaml

from koord_numa.cluster.credentials import NoCredentials, load_credentials

HOUR = 3600


def id_token(seconds: float) -> str:
    """An unsigned token that expires in some seconds."""
    claims = json.dumps({"exp": datetime.now(UTC).timestamp() + seconds}).encode()
    return f"head.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.signature"


def kubeconfig(folder: Path, name: str = "oidc", **settings: str) -> Path:
    config = {"idp-issuer-url": "https://issuer/", "client-id": "kubernetes", "client-secret": "s", **settings}
    path = folder / "kubeconfig"
    document = {
        "current-context": "c",
        "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u"}}],
        "clusters": [{"name": "c", "cluster": {"server": "http://localhost"}}],
        "users": [{"name": "u", "user": {"auth-provider": {"name": name, "config": config}}}],
    }
    path.write_text(yaml.safe_dump(document))
    return path


class FakeIssuer:
    """Answers discovery and refreshes, and records the requests."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, answer: Callable[[], Any]) -> None:
        self.asked: list[tuple[str, dict[str, list[str]]]] = []
        self._answer = answer
        monkeypatch.setattr("urllib.request.urlopen", self._open)

    def _open(self, request: Request, **_: object) -> io.BytesIO:
        form = request.data.decode() if isinstance(request.data, bytes) else ""
        self.asked.append((request.full_url, parse_qs(form)))
        discovery = {"token_endpoint": "https://issuer/token"}
        return io.BytesIO(json.dumps(self._answer() if form else discovery).encode())


def test_a_valid_token_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    issuer = FakeIssuer(monkeypatch, dict)
    token = id_token(HOUR)
    found = load_credentials(kubeconfig(tmp_path, **{"id-token": token}))
    assert found.authorization.value() == f"Bearer {token}"
    assert issuer.asked == []


def test_an_expired_token_is_renewed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    new = iter([id_token(1), id_token(HOUR)])
    issuer = FakeIssuer(monkeypatch, lambda: {"id_token": next(new), "refresh_token": "next"})
    found = load_credentials(kubeconfig(tmp_path, **{"id-token": id_token(-1), "refresh-token": "first"}))
    assert found.authorization.value().startswith("Bearer head.")
    forms = [form for url, form in issuer.asked if url == "https://issuer/token"]
    client = {"client_id": ["kubernetes"], "client_secret": ["s"], "grant_type": ["refresh_token"]}
    assert forms == [{**client, "refresh_token": ["first"]}]
    # The first renewed token is about to expire. Its refresh-token replaced that of the file.
    again = found.authorization._read()[0]
    assert again.startswith("Bearer head.")
    assert issuer.asked[-1] == ("https://issuer/token", {**client, "refresh_token": ["next"]})


@pytest.mark.parametrize(
    ("settings", "complaint"),
    [
        pytest.param({"name": "gcp"}, "the auth-provider 'gcp' is not supported; use a credential plugin", id="gcp"),
        pytest.param({"id-token": "x"}, "cannot be renewed: there is no refresh-token", id="malformed"),
        pytest.param({"refresh-token": "r"}, "cannot be renewed: 'id_token'", id="answer-without-token"),
        pytest.param(
            {"refresh-token": "r", "idp-issuer-url": "http://issuer"},
            "'http://issuer/.well-known/openid-configuration' is no https address",
            id="no-https",
        ),
    ],
)
def test_unusable_providers(
    settings: dict[str, str], complaint: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    FakeIssuer(monkeypatch, dict)
    with pytest.raises(NoCredentials) as error:
        load_credentials(kubeconfig(tmp_path, **settings)).authorization.value()
    assert complaint in str(error.value)
