"""The front's metrics: each one documented, and pages of several servers as one."""

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from fleet.metrics import FleetMetrics, merge
from router.telemetry.metrics import Metrics

PAGE = (Path(__file__).resolve().parents[2] / "docs" / "models-on-demand.md").read_text()


def names_of(page: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(page)}


def test_the_docs_list_every_metric_and_no_other() -> None:
    documented = set(re.findall(r"^\| `(tandem_fleet_\w+)` \|", PAGE, re.MULTILINE))
    assert documented == names_of(FleetMetrics(CollectorRegistry()).exposition().decode())


def test_the_front_and_its_servers_share_no_name() -> None:
    servers = Metrics(CollectorRegistry(), max_input_len=1, max_total_len=2).exposition().decode()
    assert not names_of(servers) & names_of(FleetMetrics(CollectorRegistry()).exposition().decode())


@settings(deadline=None)
@given(
    amounts=st.dictionaries(
        st.text(alphabet='ab"\\ {}=,/é', min_size=1, max_size=8),
        st.integers(0, 9),
        min_size=1,
        max_size=4,
    )
)
def test_every_sample_of_every_server_is_on_the_page_under_its_model(
    amounts: dict[str, int],
) -> None:
    pages = {}
    for model, amount in amounts.items():
        metrics = Metrics(CollectorRegistry(), max_input_len=1, max_total_len=2)
        metrics.request_failure.inc('od"d', amount)
        metrics.request_duration.observe(amount)
        pages[model] = metrics.exposition().decode()
    page = merge("", pages)
    typed = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(typed) == len(set(typed))
    families = list(text_string_to_metric_families(page))
    found = {
        sample.labels["model"]: sample.value
        for family in families
        for sample in family.samples
        if sample.name == "tgi_request_failure_total" and sample.labels["err"] == 'od"d'
    }
    assert found == amounts
    assert all("model" in sample.labels for family in families for sample in family.samples)
