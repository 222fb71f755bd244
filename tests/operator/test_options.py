"""Configuration under ``kopf run``."""

from pathlib import Path

import pytest

from koord_numa.app.runtime import Options
from koord_numa.operator import options_from_environment
from koord_numa.settings import Settings, SettingsError


def test_kopf_run_is_configured_by_the_environment(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("bindConcurrency: 7")
    options = options_from_environment(
        {
            "KOORD_NUMA_CONFIG": str(config),
            "KOORD_NUMA_METRICS_PORT": "",
            "KOORD_NUMA_IDENTITY": "me",
            "KOORD_NUMA_LEADER_ELECT": "false",
        }
    )
    assert options == Options(Settings(bind_concurrency=7), None, "me", elect=False, port=None)
    assert options_from_environment({}) == Options()


def test_a_bad_configuration_is_an_error() -> None:
    with pytest.raises(SettingsError, match="cannot be read"):
        options_from_environment({"KOORD_NUMA_CONFIG": "/does/not/exist"})


def test_an_informer_of_pods_under_kopf_run_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "config.yaml"
    config.write_text("podSource: Informer")
    with pytest.raises(SettingsError, match="needs koord-numa run"):
        options_from_environment({"KOORD_NUMA_CONFIG": str(config)})


def test_a_malformed_port_names_its_variable() -> None:
    with pytest.raises(SettingsError, match=r"^KOORD_NUMA_METRICS_PORT: 'http' is not a port$"):
        options_from_environment({"KOORD_NUMA_METRICS_PORT": "http"})
