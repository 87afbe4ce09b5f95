"""Alerts and the dashboard, by a Prometheus that scrapes a served model."""

import contextlib
import json
import shutil
import socket
import subprocess
import threading
import time
import urllib.parse
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.conformance.deploy.tools import DEPLOY, program, run
from tests.conformance.serving import Served, get

ALERTS = DEPLOY / "prometheus" / "alerts.yml"
DASHBOARD = json.loads((DEPLOY / "grafana" / "tandem.json").read_text())
# Panels about what did not happen: a failure, a preemption, a key.
QUIET = ("fail", "refus", "preempt", "by key", "recover", "annotation")


def answer_of(url: str, **query: str) -> Any:
    with urllib.request.urlopen(f"{url}?{urllib.parse.urlencode(query)}", timeout=10) as answer:
        return json.load(answer)["data"]


def generate(served: Served) -> None:
    grammar = {"type": "regex", "value": "[a-z]{3}=#[0-9]{2}"}
    for parameters in ({"max_new_tokens": 40}, {"max_new_tokens": 20, "grammar": grammar}):
        body = json.dumps({"inputs": "Once upon a time there was", "parameters": parameters})
        headers = {"content-type": "application/json"}
        asked = urllib.request.Request(f"{served.url}/generate", body.encode(), headers)
        with urllib.request.urlopen(asked, timeout=60) as answer:
            answer.read()


@pytest.fixture(scope="module")
def prometheus(served: Served, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A Prometheus with our configuration, its target the served model, after half a minute."""
    folder = tmp_path_factory.mktemp("prometheus")
    config = (DEPLOY / "prometheus" / "prometheus.yml").read_text()
    target = served.url.removeprefix("http://")
    config = config.replace("tandem:3000", target).replace(
        "scrape_interval: 5s", "scrape_interval: 1s"
    )
    (folder / "prometheus.yml").write_text(
        config.replace("evaluation_interval: 15s", "evaluation_interval: 1s")
    )
    shutil.copy(ALERTS, folder)
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    argv = [program("prometheus", "prometheus"), f"--config.file={folder}/prometheus.yml"]
    argv += [f"--storage.tsdb.path={folder}/data", f"--web.listen-address=127.0.0.1:{port}"]
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(argv, stdout=log, stderr=log)
    url = f"http://127.0.0.1:{port}/api/v1"
    is_over = threading.Event()

    def load() -> None:
        while not is_over.wait(0.1):
            generate(served)

    loading = threading.Thread(target=load)
    try:
        deadline_s = time.monotonic() + 60
        while not _scrapes(url):
            assert time.monotonic() < deadline_s, (folder / "log").read_text()[-2000:]
            time.sleep(0.2)
        loading.start()
        time.sleep(8)
        yield url
    finally:
        is_over.set()
        if loading.ident is not None:
            loading.join()
        process.terminate()
        process.wait(20)


def _scrapes(url: str) -> bool:
    with contextlib.suppress(OSError):
        targets = answer_of(f"{url}/targets")["activeTargets"]
        return bool(targets) and targets[0]["health"] == "up"
    return False


def queries() -> list[tuple[str, str]]:
    found = [
        (panel["title"], target["expr"])
        for panel in DASHBOARD["panels"]
        for target in panel.get("targets", ())
    ]
    notes = DASHBOARD["annotations"]["list"]
    return found + [(f"annotation: {each['name']}", each["expr"]) for each in notes]


@pytest.mark.parametrize(("title", "expression"), queries())
def test_each_query_of_the_dashboard_is_answered(
    prometheus: str, title: str, expression: str
) -> None:
    query = expression.replace("$__rate_interval", "10s").replace("$instance", ".*")
    assert "$" not in query
    found = answer_of(f"{prometheus}/query", query=query)["result"]

    if not any(word in title.lower() for word in QUIET):
        assert found, query


def test_the_dashboards_own_variable_finds_the_server(prometheus: str) -> None:
    names = answer_of(f"{prometheus}/series", **{"match[]": "tandem_kv_blocks_capacity"})

    assert len({each["instance"] for each in names}) == 1


def test_each_alert_is_evaluated_and_none_fires_for_a_healthy_server(prometheus: str) -> None:
    (group,) = answer_of(f"{prometheus}/rules")["groups"]

    assert len(group["rules"]) == 16
    for rule in group["rules"]:
        assert rule["health"] == "ok", rule
        # That steps wait for the router may be pending: the bundled model has a few megabytes.
        assert rule["state"] != "firing", rule["name"]


def test_each_alert_has_a_case_in_which_it_fires() -> None:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    cases = yaml.safe_load(Path(__file__).with_name("alerts_test.yml").read_text())["tests"]
    checks = [check for case in cases for check in case["alert_rule_test"]]
    fired = {check["alertname"] for check in checks if check.get("exp_alerts")}

    assert fired == {rule["alert"] for rule in group["rules"]}


def test_alerts_fire_when_they_should(tmp_path: Path) -> None:
    shutil.copy(ALERTS, tmp_path)
    shutil.copy(Path(__file__).with_name("alerts_test.yml"), tmp_path)
    judged = run(
        program("promtool", "prometheus"), "test", "rules", str(tmp_path / "alerts_test.yml")
    )

    assert judged.returncode == 0, judged.stdout + judged.stderr


def test_promtool_has_no_complaint_about_the_metrics_of_a_served_model(served: Served) -> None:
    generate(served)
    page = get(f"{served.url}/metrics").decode()
    judged = run(program("promtool", "prometheus"), "check", "metrics", stdin=page)

    assert (judged.returncode, judged.stdout, judged.stderr) == (0, "", "")


def test_promtool_would_complain_about_a_gauge_that_is_called_a_counter() -> None:
    page = "# HELP blocks_total Blocks.\n# TYPE blocks_total gauge\nblocks_total 4\n"
    judged = run(program("promtool", "prometheus"), "check", "metrics", stdin=page)

    assert "blocks_total non-counter metrics should not have" in judged.stderr


def test_the_configuration_is_one(tmp_path: Path) -> None:
    for name in ("prometheus.yml", "alerts.yml"):
        shutil.copy(DEPLOY / "prometheus" / name, tmp_path)
    judged = run(
        program("promtool", "prometheus"), "check", "config", str(tmp_path / "prometheus.yml")
    )

    assert judged.returncode == 0, judged.stdout + judged.stderr
