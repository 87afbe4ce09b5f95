"""The front's metrics: each one documented, and pages of several servers as one."""

import re
from collections.abc import Iterator
from pathlib import Path

from hypothesis import given
from hypothesis import strategies as st
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import Metric
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.registry import Collector

from fleet.metrics import FleetMetrics, merge
from processes.instruments import Counter, Histogram
from router.telemetry.metrics import Metrics

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGE = "".join((DOCS / name).read_text() for name in ("models-on-demand.md", "replicas.md"))


def names_of(page: str) -> set[str]:
    return {family.name for family in text_string_to_metric_families(page)}


def test_the_docs_list_every_metric_and_no_other() -> None:
    documented = set(re.findall(r"^\| `(tandem_fleet_\w+)` \|", PAGE, re.MULTILINE))
    assert documented == names_of(FleetMetrics(CollectorRegistry()).exposition().decode())


def test_the_front_and_its_servers_share_no_name() -> None:
    servers = Metrics(CollectorRegistry(), max_input_len=1, max_total_len=2).exposition().decode()
    assert not names_of(servers) & names_of(FleetMetrics(CollectorRegistry()).exposition().decode())


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
    page = merge("", {model: small_page(amount) for model, amount in amounts.items()}, "model")
    typed = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert typed == ["failures_total", "seconds"]
    families = list(text_string_to_metric_families(page))
    samples = [sample for family in families for sample in family.samples]
    by_model = {
        sample.labels["model"]: sample.value
        for sample in samples
        if sample.name == "failures_total" and sample.labels["err"] == 'od"d'
    }
    assert by_model == amounts
    assert {sample.labels["model"] for sample in samples} == set(amounts)
    assert len(samples) == len(amounts) * 5


def small_page(amount: int) -> str:
    """Two families of a server: a counter with a label, and a histogram."""
    failures = Counter("failures", "Failures", label="err")
    failures.inc('od"d', amount)
    seconds = Histogram("seconds", "Seconds", (1.0,))
    seconds.observe(amount)
    registry = CollectorRegistry()
    for instrument in (failures, seconds):
        registry.register(Instrument(instrument))
    return generate_latest(registry).decode()


class Instrument(Collector):
    """A collector of one instrument."""

    def __init__(self, instrument: Counter | Histogram) -> None:
        self._instrument = instrument

    def collect(self) -> Iterator[Metric]:
        yield from self._instrument.families()


def test_whole_pages_of_real_servers_are_one_page() -> None:
    metrics = Metrics(CollectorRegistry(), max_input_len=1, max_total_len=2)
    metrics.request_failure.inc("odd")
    served = metrics.exposition().decode()
    page = merge("", {"a": served, "b": served}, "model")
    assert samples_of(page) == {
        (name, frozenset({*labels, ("model", model)}), value)
        for name, labels, value in samples_of(served)
        for model in ("a", "b")
    }
    typed = re.findall(r"^# TYPE (\S+)", page, re.MULTILINE)
    assert len(typed) == len(set(typed))


def samples_of(page: str) -> set[tuple[str, frozenset[tuple[str, str]], float]]:
    return {
        (sample.name, frozenset(sample.labels.items()), sample.value)
        for family in text_string_to_metric_families(page)
        for sample in family.samples
    }
