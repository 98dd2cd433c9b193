"""Metrics by Prometheus's own rules; the dashboard and the alerts, against what a host really tells."""

from __future__ import annotations

import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from prometheus_client.parser import text_string_to_metric_families

from tests.host.served import Serve

DEPLOY = Path(__file__).parents[2] / "deploy"
DASHBOARD = json.loads((DEPLOY / "grafana" / "ors-host.json").read_text())
ALERTS = DEPLOY / "prometheus" / "alerts.yml"

NAME = re.compile(r"\b((?:ors_host|process|python)_[a-z_]+|up)\b(?=[{\[ ])")
SUFFIXES = {"counter": ("",), "gauge": ("",), "histogram": ("_bucket", "_sum", "_count")}


async def exposition(serve: Serve) -> str:
    """What a host tells that has done something."""
    server = await serve(warm=1)
    await server.create("s1")
    await server.call("s1")
    server.host.metrics.engine_asked("create", "ok", 0.1)
    server.host.metrics.warm_container_lost("image")
    server.host.usage._cpu_s["image"] = 1.5
    await server.delete("s1")
    async with server.client.get("/metrics") as response:
        return await response.text()


def run_promtool(promtool: str, *args: str, given: str = "") -> tuple[int, str, str]:
    result = subprocess.run([promtool, *args], input=given, capture_output=True, text=True, timeout=30)
    return result.returncode, result.stdout, result.stderr


def panels() -> Iterator[dict[str, Any]]:
    yield from (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def expressions() -> list[str]:
    return [target["expr"] for panel in panels() for target in panel["targets"]]


async def test_promtool_finds_nothing_to_say_of_the_metrics(serve: Serve, promtool: str) -> None:
    text = await exposition(serve)
    assert run_promtool(promtool, "check", "metrics", given=text) == (0, "", "")


async def test_names_and_words_of_the_metrics(serve: Serve) -> None:
    families = list(text_string_to_metric_families(await exposition(serve)))
    assert len({family.name for family in families}) == len(families) > 20
    for family in families:
        assert re.fullmatch(r"(ors_host|process)_[a-z][a-z0-9_]*", family.name), family.name
        assert family.documentation.strip() and family.type in SUFFIXES, family.name
        assert not re.search(
            r"_(milliseconds|ms|minutes|kilobytes|megabytes|percent)\b|_(count|sum|bucket)$", family.name
        )
        assert all({"session", "sid", "call", "task"}.isdisjoint(sample.labels) for sample in family.samples)


async def test_the_dashboard_and_the_alerts_ask_for_what_there_is(serve: Serve) -> None:
    known = {"up"}
    for line in (await exposition(serve)).splitlines():
        if line.startswith("# TYPE "):
            _, _, name, kind = line.split()
            known |= {name + suffix for suffix in SUFFIXES[kind]}
    alerts = [
        line for line in ALERTS.read_text().splitlines() if not re.search(r"^ *(-? ?alert|summary|description|#)", line)
    ]
    for source in (*expressions(), "\n".join(alerts) + "\n"):
        named = set(NAME.findall(source))
        assert named and named <= known, named - known
    shown = {name for source in expressions() for name in NAME.findall(source)}
    parts = ("_bucket", "_sum", "_count", "_created")
    untold = {name for name in known if name.startswith("ors_host") and not name.endswith(parts)}
    assert untold - shown == {"ors_host_containers_cpus"}  # a rate of its counter says the same, and more exactly


def test_promtool_can_read_every_expression(promtool: str, tmp_path: Path) -> None:
    rules = [
        {
            "record": f"panel:{number}",
            "expr": expr.replace("$__rate_interval", "5m").replace("$job", "x").replace("$instance", "x"),
        }
        for number, expr in enumerate(expressions())
    ]
    made = tmp_path / "rules.yml"
    made.write_text(json.dumps({"groups": [{"name": "dashboard", "rules": rules}]}))  # JSON is YAML
    code, _, problems = run_promtool(promtool, "check", "rules", str(made), str(ALERTS))
    assert code == 0, problems


def test_the_dashboard_is_one_that_grafana_takes() -> None:
    assert DASHBOARD["uid"] == "ors-host" and DASHBOARD["schemaVersion"] >= 36 and "__inputs" not in DASHBOARD
    variables = {variable["name"] for variable in DASHBOARD["templating"]["list"]}
    assert set(re.findall(r"\$\{?(\w+)", json.dumps(DASHBOARD))) - {"__rate_interval", "__all"} <= variables
    ids = [panel["id"] for panel in DASHBOARD["panels"]]
    assert len(ids) == len(set(ids))
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        assert place["x"] + place["w"] <= 24
        cells = {
            (x, y)
            for x in range(place["x"], place["x"] + place["w"])
            for y in range(place["y"], place["y"] + place["h"])
        }
        assert not cells & taken, f"{panel['title']} lies on another panel"
        taken |= cells
    for panel in panels():
        assert panel["title"] and panel["description"] and panel["datasource"]["type"] == "prometheus"
        assert [target["refId"] for target in panel["targets"]] == sorted(
            {target["refId"] for target in panel["targets"]}
        )
