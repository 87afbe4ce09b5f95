"""`launcher top`: rates and percentiles between two scrapes, shown until someone stops it."""

import asyncio
import signal
from asyncio.subprocess import PIPE

from client.cli.top import parse, quantile, report
from tests.client.cli.on_terminal import ARGV
from tests.command_line import run_launcher
from tests.fakes import FakeShard
from tests.router.http.harness import housing, listening

TOP = (*ARGV[:-1], "top")


def scrape(tokens: int, fast: int, slow: int, used: int = 10) -> dict[str, float]:
    return dict(
        parse(
            f"""# HELP tgi_queue_size of it
tgi_queue_size{{model="a"}} 2.0
tgi_queue_size{{model="b"}} 3.0
tandem_kv_blocks_used {used}
tandem_kv_blocks_capacity 40
tandem_output_tokens_total {tokens}
tandem_inter_token_latency_seconds_bucket{{le="0.01"}} {fast}
tandem_inter_token_latency_seconds_bucket{{le="0.02"}} {fast + slow}
tandem_inter_token_latency_seconds_bucket{{le="+Inf"}} {fast + slow}
"""
        )
    )


def test_a_report_is_what_happened_between_two_scrapes() -> None:
    rows = dict(report(scrape(100, 10, 0), scrape(300, 60, 50), 2.0))

    assert (rows["queued"], rows["tokens/s"]) == ("5", "100")
    assert (rows["running"], rows["first token, p50 / p95"]) == ("-", "-")
    assert rows["between tokens, p50 / p95"] == "10.0 ms / 19.0 ms"
    assert rows["KV cache"] == "######..................  25%"


def test_a_server_that_was_started_anew_has_no_rate() -> None:
    assert dict(report(scrape(100, 10, 0), scrape(5, 0, 0), 2.0))["tokens/s"] == "-"


def test_beyond_the_last_bound_the_last_bound_is_said() -> None:
    assert quantile([(0.5, 0.0), (float("inf"), 4.0)], 0.5) == 0.5


async def test_a_pipe_gets_one_table_after_the_other() -> None:
    async with housing(FakeShard()) as house, listening(house.app) as port:
        args = ("top", f"127.0.0.1:{port}", "--period", "0.1", "--count", "2")
        said = await asyncio.to_thread(run_launcher, *args)

    assert (said.returncode, said.stderr) == (0, "")
    assert said.stdout.count("tokens/s") == 2


async def test_ctrl_c_ends_it() -> None:
    async with housing(FakeShard()) as house, listening(house.app) as port:
        process = await asyncio.create_subprocess_exec(
            *TOP, f"127.0.0.1:{port}", "--period", "0.1", stdout=PIPE, stderr=PIPE
        )
        assert process.stdout is not None
        await asyncio.wait_for(process.stdout.readline(), 30)
        process.send_signal(signal.SIGINT)
        assert await asyncio.wait_for(process.wait(), 30) == 130


def test_no_server_is_one_clear_line() -> None:
    said = run_launcher("top", "http://127.0.0.1:1")

    assert (said.returncode, said.stdout) == (1, "")
    assert said.stderr.startswith("error: http://127.0.0.1:1/metrics does not answer")
    assert len(said.stderr.splitlines()) == 1
