"""A fresh API server and a connection to it for every test."""

from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pytest

from koord_numa.cluster.client import Api
from koord_numa.sandbox.apiserver import ApiServer


@pytest.fixture
async def server() -> AsyncIterator[ApiServer]:
    async with ApiServer(bookmark_interval=0.2) as running:
        yield running


@pytest.fixture
async def api(server: ApiServer, tmp_path: Path) -> AsyncIterator[Api]:
    async with await Api.connect(server.write_kubeconfig(tmp_path / "kubeconfig")) as connected:
        yield connected


@pytest.fixture
def rebind_crd(server: ApiServer) -> Callable[[], None]:
    """Installs a minimal CRD for RebindResources."""

    def install() -> None:
        server.store.create(
            {
                "apiVersion": "apiextensions.k8s.io/v1",
                "kind": "CustomResourceDefinition",
                "metadata": {"name": "rebindresources.scheduling.koordinator.sh"},
                "spec": {
                    "group": "scheduling.koordinator.sh",
                    "scope": "Cluster",
                    "names": {"plural": "rebindresources", "singular": "rebindresource", "kind": "RebindResource"},
                    "versions": [
                        {
                            "name": "v1alpha1",
                            "served": True,
                            "storage": True,
                            "schema": {
                                "openAPIV3Schema": {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
                            },
                        }
                    ],
                },
            }
        )

    return install
