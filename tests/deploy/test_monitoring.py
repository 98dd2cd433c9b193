"""Prometheus' and Grafana's files, and the compose file: what they name is there, and the tools that read them accept them.

No registry is asked for the two images: what is tested of the composition is that it can be read, and fits together.
"""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

DEPLOY = Path(__file__).parents[2] / "deploy"
COMPOSE = shutil.which("docker-compose")


def read(path: str) -> dict[str, Any]:
    value = yaml.safe_load((DEPLOY / path).read_text())
    assert isinstance(value, dict)
    return value


def test_what_the_composition_mounts_is_there() -> None:
    for name, service in read("compose.yaml")["services"].items():
        for source in (volume.split(":")[0] for volume in service["volumes"]):
            assert not source.startswith(".") or (DEPLOY / source).exists(), (name, source)


def test_its_parts_find_each_other() -> None:
    services = read("compose.yaml")["services"]
    (scraped,) = read("prometheus/prometheus.yml")["scrape_configs"]
    assert scraped["static_configs"] == [{"targets": ["ors-host:8080"]}] and "ors-host" in services
    assert scraped["authorization"]["credentials_file"] == "/run/secrets/api-key"
    assert all("api-key" in services[name]["secrets"] for name in ("ors-host", "prometheus"))
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    assert source["url"] == "http://prometheus:9090" and "prometheus" in services
    (provider,) = read("grafana/provisioning/dashboards/ors-host.yaml")["providers"]
    assert any(f":{provider['options']['path']}/" in volume for volume in services["grafana"]["volumes"])


def test_everything_is_published_to_this_machine_only() -> None:
    for service in read("compose.yaml")["services"].values():
        assert all(port.startswith("127.0.0.1:") for port in service["ports"])


def test_the_dashboard_asks_a_source_that_is_provisioned() -> None:
    dashboard = json.loads((DEPLOY / "grafana/ors-host.json").read_text())
    (source,) = read("grafana/provisioning/datasources/prometheus.yaml")["datasources"]
    variables = {f"${{{each['name']}}}" for each in dashboard["templating"]["list"] if each["type"] == "datasource"}
    asked = {panel["datasource"]["uid"] for panel in dashboard["panels"] if "datasource" in panel}
    assert asked <= variables | {source["uid"], "-- Grafana --"}


@pytest.mark.skipif(COMPOSE is None, reason="needs docker-compose")
def test_compose_can_read_it() -> None:
    command = [COMPOSE or "", "-f", str(DEPLOY / "compose.yaml"), "config", "--quiet"]
    done = subprocess.run(
        command, env={"ORS_HOST_IMAGE": "x:1", "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr


def test_prometheus_can_read_it(tmp_path: Path, promtool: str) -> None:
    (tmp_path / "key").touch()
    for file in (DEPLOY / "prometheus").iterdir():
        text = file.read_text().replace("/run/secrets/api-key", str(tmp_path / "key"))
        (tmp_path / file.name).write_text(text)
    command = [promtool, "check", "config", str(tmp_path / "prometheus.yml")]
    done = subprocess.run(command, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
