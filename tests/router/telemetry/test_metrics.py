"""docs/metrics.md lists every metric and every alert, and nothing else."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client import CollectorRegistry
from prometheus_client.parser import text_string_to_metric_families

from processes.instruments import Counter, Gauge, Histogram
from proto.contract import FinishReason
from router.request.errors import RouterError
from router.telemetry.metrics import SEQUENCE_ENDS, Metrics

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "metrics.md").read_text()
ALERTS = ROOT / "deploy" / "prometheus" / "alerts.yml"
NAME = re.compile(r"\b(?:tgi|tandem)_[a-z_]+")
KINDS = {Counter: "counter", Gauge: "gauge", Histogram: "histogram"}


# What TGI's own dashboard asks for; docs/metrics.md says why one more name of it is missing.
DASHBOARD = """
tgi_batch_concat tgi_batch_current_max_tokens tgi_batch_current_size tgi_queue_size
tgi_batch_decode_duration_bucket tgi_batch_filter_duration_bucket tgi_batch_forward_duration_bucket
tgi_batch_inference_duration_bucket tgi_request_count tgi_request_duration_bucket
tgi_request_failure tgi_request_generated_tokens_bucket tgi_request_generated_tokens_count
tgi_request_generated_tokens_sum tgi_request_input_length_bucket
tgi_request_mean_time_per_token_duration_bucket tgi_request_queue_duration_bucket
tgi_request_skipped_tokens_bucket tgi_request_success
""".split()


def rows() -> dict[str, list[str]]:
    """The tables' lines by metric, their other cells in order."""
    found: dict[str, list[str]] = {}
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if cells and re.fullmatch(r"`(tgi|tandem)_[a-z_]+`", cells[0]):
            assert cells[0] not in found, f"{cells[0]} has two lines"
            assert len(cells) == 6, line
            found[cells[0].strip("`")] = cells[1:]
    return found


def instruments() -> dict[str, Counter | Gauge | Histogram]:
    metrics = Metrics(CollectorRegistry(), max_input_len=10, max_total_len=20)
    return {
        each._name: each
        for each in vars(metrics).values()
        if isinstance(each, Counter | Gauge | Histogram)
    }


def old_names() -> dict[str, str]:
    """Names that are deprecated, and what they are called now."""
    gauges = [each for each in instruments().values() if isinstance(each, Gauge)]
    return {each._old_name: each._name for each in gauges if each._old_name is not None}


def series() -> set[str]:
    """Every name that a query may use."""
    names = set()
    for name, each in instruments().items():
        if isinstance(each, Counter):
            names.add(f"{name}_total")
        elif isinstance(each, Gauge):
            names.add(name)
        else:
            names |= {f"{name}_bucket", f"{name}_sum", f"{name}_count"}
    return names


def rules() -> list[dict[str, Any]]:
    (group,) = yaml.safe_load(ALERTS.read_text())["groups"]
    found: list[dict[str, Any]] = group["rules"]
    return found


def test_every_metric_has_its_line_and_no_line_is_without_a_metric() -> None:
    assert rows().keys() == instruments().keys()


def test_what_is_exposed_is_what_is_declared() -> None:
    registry = CollectorRegistry()
    Metrics(registry, max_input_len=10, max_total_len=20)
    exposed = {family.name for family in registry.collect()}
    assert exposed == instruments().keys() | old_names().keys()
    assert old_names()


def test_an_old_name_has_the_same_value_and_says_what_to_read_instead() -> None:
    metrics = Metrics(CollectorRegistry(), max_input_len=10, max_total_len=20)
    metrics.kv_blocks_capacity.set(64)
    page = metrics.exposition().decode()
    for old_name, name in old_names().items():
        assert f"# HELP {old_name} Deprecated, gone in the next release: read {name}\n" in page
        assert f"Deprecated: its old name `{old_name}`" in rows()[name][3]
    assert "\ntandem_kv_blocks_capacity 64.0\n" in page
    assert "# TYPE tandem_kv_blocks_total untyped\ntandem_kv_blocks_total 64.0\n" in page


@pytest.mark.parametrize("name", sorted(instruments()))
def test_a_line_has_the_type_and_the_label(name: str) -> None:
    kind, label, unit, meaning, alert = rows()[name]
    instrument = instruments()[name]
    assert kind == KINDS[type(instrument)]
    declared = None if isinstance(instrument, Gauge) else instrument._label
    assert label == ("" if declared is None else f"`{declared}`")
    assert unit
    assert meaning
    assert alert


def test_tgi_s_dashboard_finds_its_names() -> None:
    bare = {name for name, each in instruments().items() if isinstance(each, Counter)}
    assert set(DASHBOARD) <= series() | {name for name in bare if name.startswith("tgi_")}


def test_what_gateways_ask_for_is_there_once_it_is_known_and_has_its_line() -> None:
    metrics = Metrics(CollectorRegistry(), max_input_len=10, max_total_len=20)
    name = "vllm:lora_requests_info"
    assert name not in metrics.exposition().decode()
    for now_s in (7.0, 8.0):
        metrics.lora_requests.set(("2", "", "a,b"), now_s)
    labels = 'max_lora="2",running_lora_adapters="a,b",waiting_lora_adapters=""'
    assert f"{name}{{{labels}}} 8.0" in metrics.exposition().decode()
    shown = ", ".join(f"`{label}`" for label in re.findall(r"(\w+)=", labels))
    assert f"| `{name}` | gauge | {shown} |" in PAGE


def test_vllms_names_for_gateways_are_there_where_they_are_asked_for_and_have_their_lines() -> None:
    metrics = Metrics(CollectorRegistry(), max_input_len=10, max_total_len=20, for_gateways=True)
    assert metrics.gateways is not None
    metrics.gateways.set(
        num_waiting=3, num_running=2, num_blocks_used=5, num_blocks=20, block_size=16
    )
    exposed = metrics.exposition().decode()
    assert "\nvllm:num_requests_waiting 3.0\n" in exposed
    assert "\nvllm:num_requests_running 2.0\n" in exposed
    assert "\nvllm:kv_cache_usage_perc 0.25\n" in exposed
    assert '\nvllm:cache_config_info{block_size="16",num_gpu_blocks="20"} 1.0\n' in exposed
    for name in set(re.findall(r"^(vllm:\w+)", exposed, re.MULTILINE)):
        assert f"| `{name}` | gauge |" in PAGE
    without = Metrics(CollectorRegistry(), max_input_len=10, max_total_len=20)
    assert "vllm:" not in without.exposition().decode()


def test_the_page_has_each_rule_with_its_severity() -> None:
    listed = re.findall(r"^\| `(Tandem\w+)` \| (\w+) \|", PAGE, re.MULTILINE)
    assert sorted(listed) == sorted((rule["alert"], rule["labels"]["severity"]) for rule in rules())


def test_each_rule_is_named_beside_a_metric_and_no_other_is() -> None:
    named = {
        alert for cells in rows().values() for alert in re.findall(r"`(Tandem\w+)`", cells[-1])
    }
    assert named == {rule["alert"] for rule in rules()}


@pytest.mark.parametrize("rule", rules(), ids=lambda rule: str(rule["alert"]))
def test_a_rule_asks_for_what_is_exposed(rule: dict[str, Any]) -> None:
    asked = set(NAME.findall(rule["expr"]))
    assert asked
    assert asked <= series()
    assert rule["labels"]["severity"] in ("page", "ticket")
    assert rule["annotations"]["summary"].endswith(".")


def dashboard() -> list[str]:
    """The queries of our own dashboard."""
    shown = json.loads((ROOT / "deploy" / "grafana" / "tandem.json").read_text())
    targets = [target for panel in shown["panels"] for target in panel.get("targets", ())]
    return [each["expr"] for each in (*targets, *shown["annotations"]["list"])]


def test_what_rules_and_dashboard_ask_for_is_exposed_before_it_counts() -> None:
    """A first failure is a rate only where a 0 stood before it."""
    metrics = Metrics(CollectorRegistry(), max_input_len=10, max_total_len=20)
    metrics.open_keys(["team-a"])
    page = metrics.exposition().decode()
    exposed = {
        sample.name for each in text_string_to_metric_families(page) for sample in each.samples
    }
    asked = {name for rule in rules() for name in NAME.findall(rule["expr"])}
    asked |= {name for query in dashboard() for name in NAME.findall(query)}
    assert "tandem_constraint_check_seconds_bucket" in asked
    assert asked <= exposed
    assert not asked & old_names().keys()


def labels_asked_for() -> list[tuple[str, str]]:
    """Instruments and the values of their label in rules, one or several between bars."""
    expressions = [rule["expr"] for rule in rules()]
    selector = r'(\w+)_(?:total|sum)\{\w+=~?"([^"]+)"\}'
    found = [re.findall(selector, each) for each in expressions]
    return [pair for pairs in found for pair in pairs]


def ends() -> set[str]:
    """What a sequence may end by: reasons, and the errors of one that fails."""
    errors = [RouterError]
    found = {reason.value for reason in FinishReason}
    while errors:
        error = errors.pop()
        errors += error.__subclasses__()
        found.add(re.sub(r"(?<!^)(?=[A-Z])", "_", error.__name__).lower())
    return found


@pytest.mark.parametrize(("name", "values"), labels_asked_for())
def test_label_values_that_a_rule_asks_for_are_exposed_before_they_count(
    name: str, values: str
) -> None:
    instrument = instruments()[name]
    assert isinstance(instrument, Counter | Histogram)
    opened = instrument._values if isinstance(instrument, Counter) else instrument._counts
    assert set(values.split("|")) <= opened.keys()


def test_the_ends_that_are_exposed_are_ends() -> None:
    assert set(SEQUENCE_ENDS) < ends()
