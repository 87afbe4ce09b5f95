"""The front's own metrics, and one page of them with the metrics of all models' servers."""

import re
from collections.abc import Iterator, Mapping

from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from fleet.replicas import PickKind
from processes.instruments import Counter, Gauge, Histogram
from router.http.server.protocol import CUT_CAUSES

_SAMPLE = re.compile(r"(?P<name>[A-Za-z_:][\w:]*)(\{(?P<labels>.*)\})?(?P<rest> .*)")
_SUFFIXES = ("", "_total", "_bucket", "_sum", "_count", "_created")
# From a tiny model on a warm disk to a large one from the hub.
_LOAD_BUCKETS = tuple(0.5 * 2**k for k in range(13))
_OUTCOMES = ("loaded", "failed")
_CAUSES = ("room", "idle", "died", "stop")
REFUSALS = (
    "model_not_found",
    "model_required",
    "model_load_failed",
    "model_loading",
    "overloaded",
    "model_server_gone",
    "no_replica",
    "replicas_gone",
    "draining",
    "invalid_api_key",
)


class FleetMetrics(Collector):
    """All instruments of the front, registered in a registry."""

    def __init__(self, registry: CollectorRegistry) -> None:
        self._registry = registry
        self._states: dict[str, str] = {}
        self.requests = Counter(
            "tandem_fleet_requests", "Requests that were passed on, by model", label="model"
        )
        self.rejected = Counter(
            "tandem_fleet_rejected",
            "Requests that no model's server was asked, by reason",
            label="reason",
            label_values=REFUSALS,
        )
        self.loads = Counter(
            "tandem_fleet_loads", "Loads that ended, by outcome", "outcome", _OUTCOMES
        )
        self.unloads = Counter(
            "tandem_fleet_unloads", "Models that left the memory, by cause", "cause", _CAUSES
        )
        self.load_duration = Histogram(
            "tandem_fleet_load_duration_seconds",
            "From the decision to load a model until it was ready",
            _LOAD_BUCKETS,
        )
        self.wait_duration = Histogram(
            "tandem_fleet_wait_duration_seconds",
            "How long requests waited for their model, those not at all left out",
            _LOAD_BUCKETS,
        )
        self.waiting = Gauge("tandem_fleet_waiting", "Requests that wait for their model")
        self.sockets = Gauge("tandem_fleet_sockets", "Open LMTP sockets")
        self.ready_replicas = Gauge("tandem_fleet_ready_replicas", "Replicas that take requests")
        self.picks = Counter(
            "tandem_fleet_picks",
            "Replicas that were picked for a request: they were sent its beginning, the ring has "
            "it there, or they had the least to do",
            "kind",
            tuple(PickKind),
        )
        self.ejections = Counter(
            "tandem_fleet_ejections", "How often a replica stopped taking requests", "replica"
        )
        self.moves = Counter(
            "tandem_fleet_moves",
            "Requests that went on at another replica: in their stream, or whole",
            "kind",
            ("stream", "whole"),
        )
        self.connections_cut = Counter(
            "tandem_fleet_connections_cut",
            "Connections that were cut because their client was too slow, by what it was slow at",
            label="cause",
            label_values=CUT_CAUSES,
        )
        registry.register(self)

    def show_states(self, states: dict[str, str]) -> None:
        """Export these states, by model; absent models are left out."""
        self._states = states

    def collect(self) -> Iterator[Metric]:
        """All families, for the registry."""
        loaded = GaugeMetricFamily(
            "tandem_fleet_model_state", "1 for the state of each model", labels=["model", "state"]
        )
        for model, state in self._states.items():
            loaded.add_metric([model, state], 1)
        yield loaded
        for instrument in list(vars(self).values()):
            if isinstance(instrument, Counter | Gauge | Histogram):
                yield from instrument.families()

    def exposition(self) -> bytes:
        """The registry in Prometheus' text format 0.0.4 (UTF-8)."""
        return generate_latest(self._registry)


def merge(front_page: str, pages: Mapping[str, str], label: str) -> str:
    """The front's page and the pages of servers, by name, in Prometheus' text format.

    Every sample of a server gets its name as this label. Samples of one family stand together
    below its HELP and TYPE.
    """
    families: dict[str, list[str]] = {}
    heads: dict[str, dict[str, str]] = {}
    for server, page in pages.items():
        family = ""
        for line in page.split("\n"):
            if line.startswith("#"):
                _, kind, family, *_ = line.split(" ", 3)
                heads.setdefault(family, {}).setdefault(kind, line)
            elif sample := _SAMPLE.fullmatch(line):
                if sample["name"] not in (family + suffix for suffix in _SUFFIXES):
                    family = sample["name"]
                families.setdefault(family, []).append(_labelled(sample, label, server))
    lines = [front_page.rstrip("\n")]
    for family, samples in families.items():
        lines += [*heads.get(family, {}).values(), *samples]
    return "\n".join(lines) + "\n"


def _labelled(sample: "re.Match[str]", label: str, value: str) -> str:
    escaped = value.replace("\\", r"\\").replace('"', r"\"").replace("\n", r"\n")
    labels = f'{label}="{escaped}"' + (f",{sample['labels']}" if sample["labels"] else "")
    return f"{sample['name']}{{{labels}}}{sample['rest']}"
