"""`launcher top`: a server's load, on the terminal, from its /metrics.

GET /metrics -> Scrape -> what happened since the one before -> rows
"""

import re
import time
from collections.abc import Mapping
from itertools import pairwise

import httpx
from rich.console import Console
from rich.live import Live
from rich.table import Table

from client.cli.terminal import ExitCode
from client.errors import TandemError, Unreachable
from client.lmtp.address import Address, read_address

_SERIES = re.compile(r"([a-zA-Z_:][\w:]*)(\{.*\})? (\S+)")
_BOUND = re.compile(r'le="([^"]+)"')
_TIMEOUT_S = 5.0
_FIRST_TOKEN = "tandem_time_to_first_token_seconds"
_BETWEEN_TOKENS = "tandem_inter_token_latency_seconds"
_WIDTH = 24

# The value of each series, by name and labels.
Scrape = Mapping[str, float]


def parse(text: str) -> Scrape:
    """The values of Prometheus' text format."""
    found = (_SERIES.fullmatch(line) for line in text.splitlines())
    return {f"{each[1]}{each[2] or ''}": float(each[3]) for each in found if each is not None}


def report(before: Scrape, now: Scrape, elapsed_s: float) -> list[tuple[str, str]]:
    """What happened between two scrapes, row by row; "-": it is not known, or nothing happened.

    A server that was started anew in between has no rates.
    """

    def grown(name: str) -> float | None:
        later = total(now, name)
        earlier = total(before, name)
        if later is None or later < (earlier or 0.0):
            return None
        return later - (earlier or 0.0)

    def rate(name: str) -> str:
        count = grown(name)
        return _number(None if count is None else count / elapsed_s)

    used = _share(total(now, "tandem_kv_blocks_used"), total(now, "tandem_kv_blocks_capacity"))
    hits = _share(
        grown("tandem_prefix_cache_hit_tokens_total"), grown("tandem_prompt_tokens_total")
    )
    return [
        ("running", _number(total(now, "tgi_batch_current_size"))),
        ("queued", _number(total(now, "tgi_queue_size"))),
        ("tokens/s", rate("tandem_output_tokens_total")),
        ("requests/s", rate("tgi_request_count_total")),
        ("refused/s", rate("tandem_rejected_total")),
        ("KV cache", _bar(used)),
        ("prefix hits", _bar(hits)),
        ("first token, p50 / p95", _times(_percentiles(before, now, _FIRST_TOKEN))),
        ("between tokens, p50 / p95", _times(_percentiles(before, now, _BETWEEN_TOKENS))),
    ]


def total(scrape: Scrape, name: str) -> float | None:
    """The sum over a name's series; several models have one each."""
    values = [
        value
        for series, value in scrape.items()
        if series == name or series.startswith(f"{name}{{")
    ]
    return sum(values) if values else None


def top(url: str, api_key: str | None, period_s: float, num_reports: int | None = None) -> ExitCode:
    """The command: a table that is written anew, or without a terminal one after the other.

    num_reports: None: until Ctrl-C
    A server that goes away is asked on. Raises Unreachable and TandemError where none is there at
    first.
    """
    console = Console(highlight=False)
    address = read_address(url, api_key)
    before = _scrape(address)
    then_s = time.monotonic()
    num_left = num_reports
    try:
        with Live(console=console, auto_refresh=False) as live:
            while num_left != 0:
                time.sleep(period_s)
                try:
                    now = _scrape(address)
                    now_s = time.monotonic()
                except TandemError as error:
                    rows = [("trying again", str(error))]
                else:
                    rows = report(before, now, now_s - then_s)
                    before = now
                    then_s = now_s
                table = _table(url, rows)
                if console.is_terminal:
                    live.update(table, refresh=True)
                else:
                    console.print(table)
                num_left = None if num_left is None else num_left - 1
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return ExitCode.OK


def _scrape(address: Address) -> Scrape:
    headers = {} if address.key is None else {"authorization": f"Bearer {address.key}"}
    url = f"{address.http}/metrics"
    try:
        answer = httpx.get(url, headers=headers, timeout=_TIMEOUT_S, trust_env=not address.is_local)
    except httpx.HTTPError as error:
        raise Unreachable(f"{url} does not answer: {error}") from None
    if answer.status_code != httpx.codes.OK:
        raise TandemError(f"{url} answered {answer.status_code}: {answer.text[:200]}")
    return parse(answer.text)


def _table(url: str, rows: list[tuple[str, str]]) -> Table:
    table = Table(title=url, show_header=False, title_justify="left")
    table.add_column(style="dim")
    table.add_column(justify="left", min_width=_WIDTH + 6)
    for name, value in rows:
        table.add_row(name, value)
    return table


def _percentiles(before: Scrape, now: Scrape, name: str) -> tuple[float, float] | None:
    later = _buckets(now, name)
    earlier = _buckets(before, name)
    counts = [(bound, count - earlier.get(bound, 0.0)) for bound, count in sorted(later.items())]
    if not counts or counts[-1][1] <= 0:
        return None
    return quantile(counts, 0.5), quantile(counts, 0.95)


def _buckets(scrape: Scrape, name: str) -> dict[float, float]:
    """Cumulative counts by upper bound."""
    found: dict[float, float] = {}
    for series, value in scrape.items():
        bound = _BOUND.search(series) if series.startswith(f"{name}_bucket{{") else None
        if bound is not None:
            found[float(bound[1])] = found.get(float(bound[1]), 0.0) + value
    return found


def quantile(counts: list[tuple[float, float]], share: float) -> float:
    """Of cumulative counts by upper bound, as Prometheus' histogram_quantile: linear in a bucket.

    counts: rising, the last one above 0
    """
    rank = share * counts[-1][1]
    for (low, below), (bound, count) in pairwise([(0.0, 0.0), *counts]):
        if count >= rank:
            if bound == float("inf"):
                return low
            return low + (bound - low) * (rank - below) / (count - below)
    raise AssertionError("the last bucket holds all")


def _share(part: float | None, whole: float | None) -> float | None:
    return None if part is None or not whole else part / whole


def _number(value: float | None) -> str:
    if value is None:
        return "-"
    return f"{value:.0f}" if value >= 100 or value == int(value) else f"{value:.1f}"


def _bar(value: float | None) -> str:
    if value is None:
        return "-"
    num_full = round(_WIDTH * min(1.0, value))
    return f"{'#' * num_full}{'.' * (_WIDTH - num_full)} {value:4.0%}"


def _times(values: tuple[float, float] | None) -> str:
    return "-" if values is None else " / ".join(_time(value) for value in values)


def _time(seconds: float) -> str:
    return f"{seconds:.2f} s" if seconds >= 1 else f"{1000 * seconds:.1f} ms"
