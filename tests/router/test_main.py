"""The router as a process: how it starts, streams, drains, stops, and why it does not start."""

import asyncio
import logging
import os
import re
import resource
import signal
import socket
from collections.abc import AsyncIterator, Iterator
from contextlib import AsyncExitStack, asynccontextmanager, contextmanager
from pathlib import Path
from time import monotonic

import grpc
import pytest

from router.__main__ import main
from tests.byte_tokenizer import VOCAB_SIZE, save_byte_tokenizer
from tests.fakes import FakeShard, serving
from tests.router.process import (
    RouterProcess,
    ask,
    launched,
    serving_http,
    status_of,
    stream,
)
from tests.router.rig import adapter_folder


@pytest.fixture
def tokenizer(tmp_path: Path) -> Path:
    return save_byte_tokenizer(tmp_path / "tokenizer")


@pytest.fixture
def own_logging() -> Iterator[None]:
    """`main` sets up the root logger as a process would; pytest wants its own back."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    level = root.level
    yield
    root.handlers[:] = handlers
    root.setLevel(level)


@asynccontextmanager
async def router_over(
    shard: FakeShard, tokenizer: Path, *flags: str
) -> AsyncIterator[RouterProcess]:
    async with serving(shard) as address, serving_http(address, tokenizer, *flags) as router:
        yield router
    assert shard.violations == []


@asynccontextmanager
async def unstarted_over(shard: FakeShard, *flags: str) -> AsyncIterator[RouterProcess]:
    async with (
        serving(shard) as address,
        launched("--master-shard-uds-path", address, *flags) as router,
    ):
        yield router


@contextmanager
def few_files() -> Iterator[int]:
    """What is started meanwhile may have few open files; the most that it may allow itself."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(soft, 1024), hard))
    try:
        yield hard
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.slow
async def test_it_streams_finishes_what_runs_when_asked_to_stop_and_refuses_what_comes(
    tokenizer: Path,
) -> None:
    shard = FakeShard(num_blocks=256)
    shard.faults.delay_s = 0.02
    async with AsyncExitStack() as stack:
        with few_files() as most:
            router = await stack.enter_async_context(router_over(shard, tokenizer))
        limits = Path(f"/proc/{router.pid}/limits").read_text()
        assert re.search(rf"Max open files +{most} +{most} ", limits)
        assert await status_of(router.port, "GET", "/health") == 200
        running = await stream(router.port, "Hello", 60)
        # By default what the shard says.
        assert b"x-compute-type: cpu\r\n" in running.head
        await running.until(b"\n\n")
        router.process.send_signal(signal.SIGTERM)
        await router.until_logged("draining: 1 requests")
        assert await status_of(router.port, "POST", "/generate", {"inputs": "Hello"}) == 503
        assert await status_of(router.port, "GET", "/health") == 503
        events = await running.events()
        assert len(str(events[-1]["generated_text"])) == 60
        assert await router.ended() == 0
        assert not any("Traceback" in line for line in router.log)


@pytest.mark.slow
async def test_what_outlasts_the_drain_gets_an_error_as_its_last_event(tokenizer: Path) -> None:
    shard = FakeShard(num_blocks=1024)
    shard.faults.delay_s = 0.02
    flags = ("--graceful-termination-timeout", "0.3")
    async with router_over(shard, tokenizer, *flags) as router:
        running = await stream(router.port, "Hello", 3000)
        await running.until(b"\n\n")
        router.process.send_signal(signal.SIGINT)
        events = await running.events()
        assert "the server stopped" in str(events[-1]["error"])
        assert await router.ended() == 0


@pytest.mark.slow
async def test_a_second_signal_stops_at_once(tokenizer: Path) -> None:
    shard = FakeShard(num_blocks=1024)
    shard.faults.delay_s = 0.02
    async with router_over(shard, tokenizer) as router:
        running = await stream(router.port, "Hello", 3000)
        await running.until(b"\n\n")
        router.process.send_signal(signal.SIGTERM)
        await router.until_logged("draining")
        began_s = monotonic()
        router.process.send_signal(signal.SIGTERM)
        assert await router.ended() == 1
        assert monotonic() - began_s < 20.0
        assert "error" in (await running.events())[-1]


@pytest.mark.slow
async def test_where_the_launcher_is_gone_nothing_is_waited_for(tokenizer: Path) -> None:
    """Its shards end with it."""
    launcher = ("sh", "-c", '"$0" "$@" --parent-pid $$ & wait')
    shard = FakeShard(num_blocks=1024)
    shard.faults.delay_s = 0.02
    async with (
        serving(shard) as address,
        serving_http(address, tokenizer, within=launcher) as router,
    ):
        running = await stream(router.port, "Hello", 3000)
        await running.until(b"\n\n")
        router.process.kill()
        events = await running.events()
        assert events[-1]["error"] == "Incomplete generation: the server stopped"
        await router.until_logged("stopped")


@pytest.mark.slow
async def test_a_router_that_another_one_displaced_ends_with_one_sentence(
    tokenizer: Path,
) -> None:
    shard = FakeShard(num_blocks=1024)
    shard.faults.delay_s = 0.02
    async with router_over(shard, tokenizer) as router:
        running = await stream(router.port, "Hello", 3000)
        await running.until(b"\n\n")
        shard.epoch *= 2
        assert "error" in (await running.events())[-1]
        assert await router.ended() == 1
        errors = [line for line in router.log if "CRITICAL" in line]
        assert len(errors) == 1
        assert "another router has taken over shard 0" in errors[0]
        assert not any("Traceback" in line for line in router.log)


async def test_it_can_be_stopped_while_the_shard_warms_up(tokenizer: Path) -> None:
    shard = FakeShard()
    shard.faults.hangs.add("Warmup")
    named = ("--tokenizer-name", str(tokenizer))
    async with unstarted_over(shard, *named) as router:
        while not any(method == "Warmup" for method, _ in shard.calls):
            await asyncio.sleep(0.01)
        router.process.send_signal(signal.SIGTERM)
        assert await router.ended() == 0


async def test_it_does_not_outlive_its_parent(tokenizer: Path) -> None:
    shard = FakeShard()
    shard.faults.hangs.add("Warmup")
    not_its_parent = str(os.getppid())
    flags = ("--tokenizer-name", str(tokenizer), "--parent-pid", not_its_parent)
    async with unstarted_over(shard, *flags) as router:
        assert await router.ended() == 0


async def test_what_the_tokenizer_and_the_states_of_a_model_mean_for_requests_is_told(
    tokenizer: Path,
) -> None:
    shard = FakeShard(vocab_size=VOCAB_SIZE - 8, num_states=12)
    async with router_over(shard, tokenizer) as router:
        line = await router.until_logged("the tokenizer has ids up to")
        assert f"up to {VOCAB_SIZE - 1}, and the model has {VOCAB_SIZE - 8} tokens" in line
        line = await router.until_logged("prefix caching is off")
        assert "its executor (none) keeps none with which a later request could begin" in line
        await router.until_logged("12 states of 1.0 KiB")
        info = await ask(router.port, "GET", "/info")
        await info.until(b'"num_states":12,"prefix_caching":false')
        info.writer.close()
        # It serves.
        await (await stream(router.port, "Hello", 5)).events()
        await router.until_logged("/generate_stream")


async def test_flags_make_log_lines_json_the_compute_type_another_and_requests_end(
    tokenizer: Path,
) -> None:
    shard = FakeShard(num_blocks=1024)
    shard.faults.delay_s = 0.02
    flags = ("--json-output", "--compute-type", "tpu", "--max-request-duration", "0.5")
    async with router_over(shard, tokenizer, *flags) as router:
        answer = await stream(router.port, "Hello", 5)
        assert b"x-compute-type: tpu\r\n" in answer.head
        await answer.events()
        line = await router.until_logged("/generate_stream")
        for words in ('"level":"INFO"', '"num_generated_tokens":5', '"request_id":"'):
            assert words in line

        began_s = monotonic()
        body = {"inputs": "Hello", "parameters": {"max_new_tokens": 3000, "details": True}}
        events = await (await ask(router.port, "POST", "/generate_stream", body)).events()
        assert monotonic() - began_s < 20.0
        last = events[-1]
        assert isinstance(last["details"], dict)
        assert last["details"]["finish_reason"] == "deadline"
        assert 1 <= len(str(last["generated_text"])) < 100


async def test_a_shard_out_of_memory_is_one_line(tokenizer: Path) -> None:
    shard = FakeShard()
    reason = "lower --max-batch-prefill-tokens"
    shard.faults.fails.append(("Warmup", grpc.StatusCode.RESOURCE_EXHAUSTED, reason))
    named = ("--tokenizer-name", str(tokenizer))
    async with unstarted_over(shard, *named) as router:
        assert await router.ended() == 1
        assert len(router.log) == 1
        assert f"Warmup: RESOURCE_EXHAUSTED: {reason}" in router.log[0]


async def test_an_adapter_that_the_shard_refuses_ends_the_start_with_its_reason(
    tokenizer: Path, tmp_path: Path
) -> None:
    shard = FakeShard(max_loras=1)
    reason = "use_dora is True, which is not served"
    shard.faults.fails.append(("LoadAdapter", grpc.StatusCode.INVALID_ARGUMENT, reason))
    path = adapter_folder(tmp_path, "a")
    named = ("--tokenizer-name", str(tokenizer), "--lora-adapters", f"sql={path}")
    async with unstarted_over(shard, *named) as router:
        assert await router.ended() == 1
        assert router.log[-1] == f"error: --lora-adapters sql={path}: {reason}\n"
        assert "Traceback" not in "".join(router.log)


@pytest.mark.slow
async def test_more_tokens_than_the_pool_holds_are_refused_with_the_numbers(
    tokenizer: Path,
) -> None:
    named = ("--tokenizer-name", str(tokenizer), "--max-total-tokens", "300")
    async with unstarted_over(FakeShard(num_blocks=64, block_size=4), *named) as router:
        assert await router.ended() == 1
        assert router.log == [
            "error: --max-total-tokens 300: must be at most 256, for a KV pool of 0.0 KiB "
            "(64 blocks of 4 tokens) is all that fits\n"
        ]


def starts(capfd: pytest.CaptureFixture[str], *argv: str) -> tuple[int, str]:
    code = main([*argv])
    errors = capfd.readouterr().err
    assert "Traceback" not in errors
    assert errors.count("\n") == 1, errors
    return code, errors


@pytest.mark.usefixtures("own_logging")
def test_a_bad_flag_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    code, errors = starts(capfd, "--port", "http")
    assert code == 2
    assert errors.startswith("error: --port 'http': must be a whole number")


@pytest.mark.usefixtures("own_logging")
def test_a_port_in_use_is_one_line(capfd: pytest.CaptureFixture[str]) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        code, errors = starts(capfd, "--port", str(port))
    assert (code, errors) == (
        1,
        f"error: cannot listen at 127.0.0.1:{port}: Address already in use\n",
    )


@pytest.mark.usefixtures("own_logging")
def test_an_address_that_is_not_here_is_one_line(
    capfd: pytest.CaptureFixture[str],
) -> None:
    code, errors = starts(capfd, "--port", "0", "--hostname", "192.0.2.1")
    assert code == 1
    assert errors.startswith("error: cannot listen at 192.0.2.1:0:")


@pytest.mark.usefixtures("own_logging")
def test_a_missing_tokenizer_is_one_line(capfd: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    code, errors = starts(capfd, "--port", "0", "--tokenizer-name", str(tmp_path / "none"))
    assert code == 1
    assert errors == f"error: the tokenizer's folder '{tmp_path / 'none'}' does not exist\n"
    code, errors = starts(capfd, "--port", "0", "--tokenizer-name", str(tmp_path))
    assert code == 1
    assert "tokenizer.json" in errors


@pytest.mark.usefixtures("own_logging")
def test_a_missing_adapter_is_one_line_also_where_all_is_only_checked(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, tokenizer: Path
) -> None:
    flags = ("--port", "0", "--tokenizer-name", str(tokenizer), "--lora-adapters", "x=/nowhere")
    said = "error: the adapter's folder '/nowhere' does not exist\n"
    assert starts(capfd, *flags) == (1, said)
    assert starts(capfd, "check", *flags) == (1, said)


@pytest.mark.usefixtures("own_logging")
def test_no_shard_is_one_line(
    capfd: pytest.CaptureFixture[str], tmp_path: Path, tokenizer: Path
) -> None:
    path = str(tmp_path / "shard-0")
    flags = ("--master-shard-uds-path", path, "--shard-connect-timeout", "0.3", "--port", "0")
    code, errors = starts(capfd, *flags, "--tokenizer-name", str(tokenizer))
    assert (code, errors) == (
        1,
        f"error: no shard answers at {path} (waited 0.3 s); is it started?\n",
    )
