"""Counters, gauges and histograms: plain numbers, exported as Prometheus' families at a scrape.

Names. TGI's counters carry no `_total`; the Prometheus library insists on it. So each counter is
exposed twice: as a counter under `<name>_total`, and, for dashboards made for TGI, the same value
without a type under the bare `<name>`. Tandem's own instruments begin with `tandem_` and have
the suffix alone.

Cost. One thread alone writes the instruments, so that they need no lock: a token's counter and
histogram take 0.36 us, where prometheus_client's take 1.2 us, 4 % of what the router spends on a
token. That library has neither a counter without suffix, nor totals counted elsewhere, nor several
observations at once; what it does better, the families' text format, is left to it.
"""

from bisect import bisect_left
from collections.abc import Iterator, Sequence

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
    UnknownMetricFamily,
)


class Counter:
    """A number that only grows, one for each value of its label (or one without).

    `label_values` are exported from the start; others from their first increment.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        label: str | None = None,
        label_values: Sequence[str] = (),
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._label = label
        self._values: dict[str, float] = dict.fromkeys(label_values if label else ("",), 0.0)

    def inc(self, label_value: str = "", amount: float = 1.0) -> None:
        """Add `amount`; a counter with a label needs its value."""
        self._values[label_value] = self._values.get(label_value, 0.0) + amount

    def set_total(self, total: float, label_value: str = "") -> None:
        """Set a total that is counted elsewhere (the scheduler's cumulative numbers)."""
        self._values[label_value] = total

    def value(self, label_value: str = "") -> float:
        return self._values.get(label_value, 0.0)

    def families(self) -> Iterator[Metric]:
        """Both spellings; see the module's docstring."""
        labels = [self._label] if self._label else []
        typed = CounterMetricFamily(self._name, self._documentation, labels=labels)
        families: list[CounterMetricFamily | UnknownMetricFamily] = [typed]
        if self._name.startswith("tgi_"):
            families.append(UnknownMetricFamily(self._name, self._documentation, labels=labels))
        for label_value, value in self._values.items():
            for family in families:
                family.add_metric([label_value] if self._label else [], value)
        yield from families


class Gauge:
    """A number that goes up and down.

    It is exported under `old_name` too, for the one release in which that is deprecated; without
    a type, since promtool takes any name of an untyped metric.
    """

    def __init__(self, name: str, documentation: str, *, old_name: str | None = None) -> None:
        self._name = name
        self._documentation = documentation
        self._old_name = old_name
        self._value = 0.0

    def set(self, value: float) -> None:
        self._value = value

    def add(self, amount: float) -> None:
        self._value += amount

    def value(self) -> float:
        return self._value

    def families(self) -> Iterator[Metric]:
        """The one family, or one for each of two names."""
        yield GaugeMetricFamily(self._name, self._documentation, value=self._value)
        if self._old_name is not None:
            deprecation = f"Deprecated, gone in the next release: read {self._name}"
            yield UnknownMetricFamily(self._old_name, deprecation, value=self._value)


class LastKnown:
    """Labels that say how things stand, and when that was, in Unix time; only the last ones."""

    def __init__(self, name: str, documentation: str, labels: Sequence[str]) -> None:
        self._name = name
        self._documentation = documentation
        self._labels = tuple(labels)
        self._last: tuple[Sequence[str], float] | None = None

    def set(self, label_values: Sequence[str], now_s: float) -> None:
        """A value for each label, in their order."""
        self._last = (label_values, now_s)

    def families(self) -> Iterator[Metric]:
        """The one family; none before the first values."""
        if self._last is not None:
            family = GaugeMetricFamily(self._name, self._documentation, labels=self._labels)
            family.add_metric(*self._last)
            yield family


class Histogram:
    """Counts of observations by bucket, one set for each value of its label (or one without).

    `label_values` are exported from the start; others from their first observation.
    """

    def __init__(
        self,
        name: str,
        documentation: str,
        buckets: Sequence[float],
        label: str | None = None,
        label_values: Sequence[str] = (),
    ) -> None:
        self._name = name
        self._documentation = documentation
        self._buckets = tuple(buckets)
        self._bounds = [*(f"{bound:.6g}" for bound in buckets), "+Inf"]
        self._label = label
        self._counts: dict[str, list[int]] = {}
        self._sums: dict[str, float] = {}
        for label_value in label_values if label else ("",):
            self._open(label_value)

    def observe(self, value: float, label_value: str = "", count: int = 1) -> None:
        """Count `value`, `count` times."""
        counts = self._counts.get(label_value)
        if counts is None:
            counts = self._open(label_value)
        counts[bisect_left(self._buckets, value)] += count
        self._sums[label_value] += value * count

    def count(self, label_value: str = "") -> int:
        """Observations so far."""
        return sum(self._counts.get(label_value, ()))

    def sum(self, label_value: str = "") -> float:
        return self._sums.get(label_value, 0.0)

    def families(self) -> Iterator[Metric]:
        """The one family, its buckets cumulative."""
        labels = [self._label] if self._label else []
        family = HistogramMetricFamily(self._name, self._documentation, labels=labels)
        for label_value, counts in self._counts.items():
            cumulative = 0
            rows = []
            for bound, count in zip(self._bounds, counts, strict=True):
                cumulative += count
                rows.append((bound, cumulative))
            family.add_metric(
                [label_value] if self._label else [], rows, sum_value=self._sums[label_value]
            )
        yield family

    def _open(self, label_value: str) -> list[int]:
        self._sums[label_value] = 0.0
        return self._counts.setdefault(label_value, [0] * len(self._bounds))
