"""A server as an operator runs it: keys, TLS, traces, a log in JSON, a reload and the drain."""

import json
import os
import signal
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterator
from hashlib import sha256
from pathlib import Path

import httpx
import pytest

from tests.certificates import Certificate, make_certificate
from tests.collector import Collector, Span, collecting
from tests.integration.server import START_TIMEOUT_S, RunningServer, launched, wait_until_gone

pytestmark = pytest.mark.slow

ROUTER = "text-generation-inference.router"
SHARD = "text-generation-inference.server"
GENERATED = {
    f"{ROUTER}: POST /generate",
    f"{ROUTER}: inference",
    f"{SHARD}: prefill",
    f"{SHARD}: decode",
}
REFUSED = {f"{ROUTER}: POST /generate", f"{ROUTER}: validate"}
KEY, LATER_KEY = "sk-hush-hush", "sk-later"


def entry(name: str, key: str) -> str:
    return f'[[keys]]\nname = "{name}"\nsha256 = "{sha256(key.encode()).hexdigest()}"\n'


def bearing(key: str) -> dict[str, str]:
    return {"authorization": f"Bearer {key}"}


def wait_until(server: RunningServer, condition: Callable[[], bool]) -> None:
    deadline_s = time.monotonic() + START_TIMEOUT_S
    while not condition():
        assert server.process.poll() is None, server.said
        assert time.monotonic() < deadline_s, server.said
        time.sleep(0.05)


@pytest.fixture(scope="module")
def collector() -> Iterator[Collector]:
    with collecting() as running:
        yield running


@pytest.fixture(scope="module")
def pem(tmp_path_factory: pytest.TempPathFactory) -> Certificate:
    return make_certificate(tmp_path_factory.mktemp("tls") / "mine")


@pytest.fixture(scope="module")
def keys(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("keys") / "keys.toml"
    path.write_text(entry("first", KEY))
    return path


@pytest.fixture(scope="module")
def tls(pem: Certificate) -> ssl.SSLContext:
    return ssl.create_default_context(cafile=pem.cert)


@pytest.fixture(scope="module")
def server(
    pem: Certificate, tls: ssl.SSLContext, keys: Path, collector: Collector
) -> Iterator[RunningServer]:
    """Its `http` has the first key."""
    certified = ("--ssl-certfile", str(pem.cert), "--ssl-keyfile", str(pem.key))
    guarded = ("--api-key-file", str(keys), "--protect-metrics")
    traces = ("--otlp-endpoint", collector.endpoint, "--json-output")
    # Without drafts each token is a step.
    model = ("--served-model-name", "teller", "--max-batch-prefill-tokens", "32", "--speculate=0")
    with launched(*certified, *guarded, *traces, *model, wait=False) as running:
        wait_until(running, lambda: "Tandem serves at" in running.said)
        address = f"https://127.0.0.1:{running.port}"
        with httpx.Client(
            verify=tls, base_url=address, headers=bearing(KEY), timeout=60
        ) as running.http:
            yield running


@pytest.fixture
def client(server: RunningServer, tls: ssl.SSLContext) -> Iterator[httpx.Client]:
    """It has no key."""
    address = f"https://127.0.0.1:{server.port}"
    with httpx.Client(verify=tls, base_url=address, timeout=60) as client:
        yield client


def test_the_counters_of_a_key_are_there_before_its_first_request(client: httpx.Client) -> None:
    metrics = client.get("/metrics", headers=bearing(KEY)).text
    assert 'tandem_key_generated_tokens_total{key="first"} 0.0\n' in metrics
    assert 'tandem_key_shard_seconds_total{key="first"} 0.0\n' in metrics


def test_who_has_a_key_is_served_and_nobody_else(client: httpx.Client) -> None:
    body = {"inputs": "Once there was", "parameters": {"max_new_tokens": 5}}
    assert client.post("/generate", json=body, headers=bearing(KEY)).status_code == 200
    assert client.post("/generate", json=body).status_code == 401
    assert client.get("/health").status_code == 200
    assert client.get("/metrics").status_code == 401


def test_the_hello_speaks_https(server: RunningServer) -> None:
    assert f"Tandem serves at https://127.0.0.1:{server.port}" in server.said


def traceparent(sampled: bool = True) -> tuple[str, str, str]:
    """A client's header, its trace id and its span id."""
    trace_id, span_id = os.urandom(16).hex(), os.urandom(8).hex()
    return f"00-{trace_id}-{span_id}-{'01' if sampled else '00'}", trace_id, span_id


def ask(
    server: RunningServer,
    path: str,
    parent: str,
    inputs: str = "Once there was",
    **parameters: object,
) -> httpx.Response:
    body = {"inputs": inputs, "parameters": parameters}
    headers = {"traceparent": parent, "tracestate": "vendor=a b,other=1"}
    return server.http.post(path, json=body, headers=headers, timeout=60)


def one(spans: list[Span], name: str, service: str = ROUTER) -> Span:
    (found,) = (span for span in spans if (span.service, span.name) == (service, name))
    return found


def logged(server: RunningServer, trace_id: str) -> dict[str, object]:
    """The router's log line of a trace."""
    deadline_s = time.monotonic() + 30
    while time.monotonic() < deadline_s:
        for line in list(server.lines):
            if trace_id in line:
                told: dict[str, object] = json.loads(line)
                return told
        time.sleep(0.05)
    raise AssertionError(f"no line tells of trace {trace_id}; there are:\n{server.said}")


def test_router_and_shard_spans_are_in_the_clients_trace(
    server: RunningServer, collector: Collector
) -> None:
    parent, trace_id, client_span_id = traceparent()
    answer = ask(server, "/generate", parent, max_new_tokens=8, ignore_eos=True)
    assert answer.status_code == 200
    spans = collector.wait_for(trace_id, GENERATED)
    request, inference = one(spans, "POST /generate"), one(spans, "inference")
    prefill, decode = one(spans, "prefill", SHARD), one(spans, "decode", SHARD)
    assert request.parent_id == client_span_id
    assert {one(spans, name).parent_id for name in ("validate", "queue", "inference")} == {
        request.span_id
    }
    assert prefill.parent_id == decode.parent_id == inference.span_id
    assert {span.state for span in spans} == {"vendor=a b,other=1"}
    assert not any(span.is_error for span in spans)
    assert request.start_ns <= inference.start_ns <= prefill.end_ns <= decode.end_ns
    assert decode.end_ns <= request.end_ns
    attributes = request.attributes
    assert attributes["http.route"] == "/generate"
    assert attributes["http.response.status_code"] == 200
    assert attributes["tandem.request_id"] == answer.headers["x-request-id"]
    assert attributes["gen_ai.usage.output_tokens"] == 8
    assert attributes["gen_ai.response.finish_reasons"] == ["length"]
    assert prefill.attributes["tandem.num_tokens"] == attributes["gen_ai.usage.input_tokens"]
    # The first token is drawn with the prompt's last chunk.
    assert decode.attributes["tandem.num_steps"] == 7
    assert inference.events == ("first token",)


def test_a_long_prompt_has_a_span_for_each_chunk(
    server: RunningServer, collector: Collector
) -> None:
    parent, trace_id, _ = traceparent()
    ask(server, "/generate", parent, "one two three " * 20, max_new_tokens=2, ignore_eos=True)
    spans = collector.wait_for(trace_id, GENERATED)
    chunks = [span for span in spans if (span.service, span.name) == (SHARD, "prefill")]
    lens = [span.attributes["tandem.num_tokens"] for span in chunks]
    assert len(lens) > 1
    num_cached = one(spans, "inference").attributes["tandem.num_cached_tokens"]
    request = one(spans, "POST /generate")
    assert sum(lens) == request.attributes["gen_ai.usage.input_tokens"] - num_cached


def test_a_stream_is_traced_to_its_last_event(server: RunningServer, collector: Collector) -> None:
    parent, trace_id, client_span_id = traceparent()
    body = {"inputs": "Once", "parameters": {"max_new_tokens": 12, "ignore_eos": True}}
    headers = {"traceparent": parent}
    with server.http.stream(
        "POST", "/generate_stream", json=body, headers=headers, timeout=60
    ) as stream:
        assert len([line for line in stream.iter_lines() if line]) == 12
    spans = collector.wait_for(trace_id, {f"{ROUTER}: POST /generate_stream", f"{SHARD}: decode"})
    request = one(spans, "POST /generate_stream")
    assert request.parent_id == client_span_id
    assert request.attributes["tandem.stream"] is True
    assert request.attributes["gen_ai.usage.output_tokens"] == 12
    assert one(spans, "decode", SHARD).attributes["tandem.num_steps"] == 11


def test_a_refused_request_has_its_span_and_no_more(
    server: RunningServer, collector: Collector
) -> None:
    parent, trace_id, client_span_id = traceparent()
    assert ask(server, "/generate", parent, max_new_tokens=0).status_code == 422
    spans = collector.wait_for(trace_id, REFUSED)
    request = one(spans, "POST /generate")
    assert request.parent_id == client_span_id
    assert request.attributes["http.response.status_code"] == 422
    assert request.attributes["error.type"] == "validation"
    # Refusing was right: only the validation failed.
    assert not request.is_error
    assert one(spans, "validate").is_error
    assert {span.name for span in spans} == {"POST /generate", "validate"}
    assert logged(server, trace_id)["error_type"] == "validation"


def test_requests_of_one_batch_keep_to_their_traces(
    server: RunningServer, collector: Collector
) -> None:
    parents = [traceparent() for _ in range(2)]
    asking = [
        threading.Thread(
            target=ask,
            args=(server, "/generate", parent, f"{number} is a number"),
            kwargs={"max_new_tokens": 400, "ignore_eos": True},
        )
        for number, (parent, _, _) in enumerate(parents)
    ]
    for thread in asking:
        thread.start()
    for thread in asking:
        thread.join()
    both = [collector.wait_for(trace_id, GENERATED) for _, trace_id, _ in parents]
    for spans, (_, _, client_span_id) in zip(both, parents, strict=True):
        assert one(spans, "POST /generate").parent_id == client_span_id
        inference, decode = one(spans, "inference"), one(spans, "decode", SHARD)
        assert decode.parent_id == inference.span_id
        assert decode.attributes["tandem.num_steps"] == 399
    first, second = (one(spans, "decode", SHARD) for spans in both)
    assert first.start_ns < second.end_ns
    assert second.start_ns < first.end_ns


def test_each_answer_of_several_has_its_own_inference(
    server: RunningServer, collector: Collector
) -> None:
    parent, trace_id, _ = traceparent()
    ask(server, "/generate", parent, max_new_tokens=4, ignore_eos=True, best_of=2, do_sample=True)
    spans = collector.wait_for(trace_id, GENERATED)
    inferences = {span.span_id for span in spans if span.name == "inference"}
    assert len(inferences) == 2
    assert {span.parent_id for span in spans if span.name == "decode"} == inferences


def test_a_client_that_does_not_sample_is_obeyed(
    server: RunningServer, collector: Collector
) -> None:
    parent, trace_id, _ = traceparent(sampled=False)
    ask(server, "/generate", parent, max_new_tokens=2)
    recorded, recorded_id, _ = traceparent()
    ask(server, "/generate", recorded, max_new_tokens=2, ignore_eos=True)
    collector.wait_for(recorded_id, GENERATED)
    assert collector.of(trace_id) == []
    assert logged(server, trace_id)["status"] == 200


def test_without_a_traceparent_a_trace_begins_here(
    server: RunningServer, collector: Collector
) -> None:
    answer = server.http.post(
        "/generate",
        json={"inputs": "Once", "parameters": {"max_new_tokens": 2, "ignore_eos": True}},
        headers={"x-request-id": "of-its-own"},
        timeout=60,
    )
    assert answer.status_code == 200
    told = logged(server, '"of-its-own"')
    spans = collector.wait_for(str(told["trace_id"]), GENERATED)
    assert one(spans, "POST /generate").parent_id == ""
    assert (told["route"], told["stream"], told["finish_reasons"]) == ("/generate", False, "length")
    assert told["model"] == "teller"


def test_every_line_of_the_log_is_an_object_that_names_its_process(server: RunningServer) -> None:
    said = [json.loads(line) for line in list(server.lines)]
    assert {line["process"] for line in said} == {"launcher", "router", "shard 0"}
    for line in said:
        assert line.keys() >= {"timestamp", "level", "target", "message"}


def test_keys_are_changed_by_sighup_and_a_wrong_file_changes_nothing(
    server: RunningServer, client: httpx.Client, keys: Path
) -> None:
    def status(key: str) -> int:
        return client.get("/info", headers=bearing(key)).status_code

    assert (status(KEY), status(LATER_KEY)) == (200, 401)
    keys.write_text(entry("second", LATER_KEY))
    server.signal(signal.SIGHUP)
    wait_until(server, lambda: status(LATER_KEY) == 200)
    assert status(KEY) == 401

    keys.write_text("keys = 3")
    server.signal(signal.SIGHUP)
    wait_until(server, lambda: "the API keys stay as they were" in server.said)
    assert status(LATER_KEY) == 200


def test_sigterm_drains_what_runs_and_leaves_nothing_behind(
    server: RunningServer, client: httpx.Client
) -> None:
    """The last test with this server: it is gone afterwards."""
    pids = server.descendants()
    lines: list[str] = []
    body = {"inputs": "Once there was", "parameters": {"max_new_tokens": 400, "ignore_eos": True}}

    def read() -> None:
        headers = bearing(LATER_KEY)
        with client.stream("POST", "/generate_stream", json=body, headers=headers) as stream:
            lines.extend(line for line in stream.iter_lines() if line)

    reader = threading.Thread(target=read)
    reader.start()
    wait_until(server, lambda: bool(lines))
    server.signal(signal.SIGTERM)
    reader.join(60)
    assert server.wait() == 0
    assert json.loads(lines[-1].removeprefix("data:"))["generated_text"] is not None
    assert len(lines) == 400
    assert wait_until_gone(pids) == []


# What a process does without its collector is held by tests/processes/test_tracing.py.
@pytest.mark.nightly
def test_a_collector_that_does_not_answer_costs_nothing_but_spans() -> None:
    listener = socket.create_server(("127.0.0.1", 0))
    endpoint = f"http://127.0.0.1:{listener.getsockname()[1]}"
    with listener, launched("--otlp-endpoint", endpoint) as server:
        for _ in range(5):
            parent, _, _ = traceparent()
            assert ask(server, "/generate", parent, max_new_tokens=4).status_code == 200
        deadline_s = time.monotonic() + 20
        while "traces are being lost" not in server.said and time.monotonic() < deadline_s:
            time.sleep(0.1)
        # The router and the shard, once each.
        assert server.said.count("traces are being lost") in (1, 2)
        server.signal(signal.SIGTERM)
        assert server.wait(30) == 0
    assert "Traceback" not in server.said
