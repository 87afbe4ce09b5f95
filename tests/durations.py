"""What each test took when it ran here last, in pytest's cache: the longest files go first, and
`--quickest S` runs the quickest tests alone, S seconds of them."""

from collections import defaultdict
from collections.abc import Mapping

import pytest

_KEY = "tandem/durations"
# What is shorter is not worth a line of the cache.
_WORTH_A_LINE_S = 0.05


class Durations:
    """A pytest plugin; with pytest-xdist, of the process that starts the workers."""

    def __init__(self, cache: pytest.Cache) -> None:
        self._cache = cache
        self._took: dict[str, dict[str, float]] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self._took.setdefault(report.nodeid, {})[report.when] = report.duration

    def pytest_sessionfinish(self) -> None:
        known = recorded(self._cache)
        for name, took in self._took.items():
            known.pop(name, None)
            if (whole_s := sum(took.values())) > _WORTH_A_LINE_S:
                # Whoever comes first in a file sets up what all of it use: that is no test's own.
                known[name] = {"own": round(took.get("call", 0.0), 2), "all": round(whole_s, 2)}
        self._cache.set(_KEY, known)


def recorded(cache: pytest.Cache | None) -> dict[str, Mapping[str, float]]:
    """Seconds by test: `own`, and `all` with what was set up for it."""
    return {} if cache is None else dict(cache.get(_KEY, {}))


def longest_files_first(items: list[pytest.Item], known: Mapping[str, Mapping[str, float]]) -> None:
    """So that no worker begins one while the other is done. Not known yet: slow ones first."""
    seconds: defaultdict[object, float] = defaultdict(float)
    for item in items:
        is_slow = item.get_closest_marker("slow") is not None
        seconds[item.path] += known[item.nodeid]["all"] if item.nodeid in known else 5 * is_slow
    items.sort(key=lambda item: -seconds[item.path])


def leave_out_the_longest(
    items: list[pytest.Item], known: Mapping[str, Mapping[str, float]], budget_s: float
) -> list[pytest.Item]:
    """Takes tests away until what is left took `budget_s` at most; returns them."""
    own_s = {item: known[item.nodeid]["own"] if item.nodeid in known else 0.0 for item in items}
    left_s = budget_s
    kept = set()
    for item in sorted(items, key=own_s.__getitem__):
        left_s -= own_s[item]
        if left_s < 0:
            break
        kept.add(item)
    left_out = [item for item in items if item not in kept]
    items[:] = [item for item in items if item in kept]
    return left_out
