"""What the server says of itself, from flags and shard, and in the headers of answers."""

from dataclasses import replace
from typing import Any

import pytest

from proto import generate_pb2 as pb
from proto.contract import ModelInfo, PoolLimits
from proto.convert import from_message, to_message
from router.config import RouterConfig
from router.http.server_info import capacity_of, limits_of, max_drafts_of, server_info
from router.request.errors import StartupFailed
from tests.byte_tokenizer import byte_ids
from tests.fake_script import saying
from tests.fakes import FakeShard
from tests.router.http.harness import housing


def served_by(executor: str, *, is_invariant: bool) -> ModelInfo:
    return ModelInfo(
        model_id="m",
        model_type="llama",
        dtype="bfloat16",
        device_type="cpu",
        executor=executor,
        block_size=16,
        vocab_size=100,
        max_position_embeddings=64,
        window_len=None,
        eos_token_ids=(1,),
        world_size=1,
        rank=0,
        is_invariant=is_invariant,
    )


@pytest.mark.parametrize(("speculate", "max_drafts"), [(None, 7), (0, 0), (3, 3)])
def test_drafts_are_on_where_they_change_no_answer(speculate: int | None, max_drafts: int) -> None:
    dense = served_by("dense, bf16, amx", is_invariant=True)
    assert max_drafts_of(RouterConfig(speculate=speculate), dense) == max_drafts


def test_drafts_are_off_and_refused_where_they_would_change_answers() -> None:
    zoo = served_by("zoo, sdpa", is_invariant=False)
    assert max_drafts_of(RouterConfig(), zoo) == max_drafts_of(RouterConfig(speculate=0), zoo) == 0
    with pytest.raises(StartupFailed, match=r"--speculate 3: .* the executor `zoo, sdpa` depend"):
        max_drafts_of(RouterConfig(speculate=3), zoo)


@pytest.mark.parametrize(
    ("model_id", "flag", "name", "aliases"),
    [
        ("org/name", None, "org/name", {"name"}),
        ("/data/name", None, "name", {"/data/name"}),
        ("/data/name", "mine", "mine", {"/data/name", "name"}),
    ],
)
def test_the_model_has_one_name_and_aliases_that_are_not_told(
    model_id: str, flag: str | None, name: str, aliases: set[str]
) -> None:
    info = replace(served_by("dense", is_invariant=True), model_id=model_id)
    config = RouterConfig(served_model_name=flag)
    pool = PoolLimits(8, 16, 64)
    about = server_info(config, 1, info, pool, limits_of(config, info, pool))
    assert (about.model_id, set(about.aliases)) == (name, aliases)


STATES = replace(served_by("zoo", is_invariant=True), state_bytes=1 << 20)


@pytest.mark.parametrize(
    ("is_asked_for", "state_bytes", "keeps_states", "is_on"),
    [
        (True, 0, False, True),
        (False, 0, False, False),
        (True, 8, False, False),
        (True, 8, True, True),
        (False, 8, True, False),
    ],
)
def test_prefixes_are_cached_where_a_request_could_begin_behind_them(
    is_asked_for: bool, state_bytes: int, keeps_states: bool, is_on: bool
) -> None:
    info = replace(STATES, state_bytes=state_bytes, keeps_states=keeps_states)
    pool = PoolLimits(8, 16, 64, num_states=4)
    config = RouterConfig(prefix_caching=is_asked_for)
    about = server_info(config, 1, info, pool, limits_of(config, info, pool))
    assert (about.prefix_caching, about.num_states) == (is_on, 4)


def test_slots_for_states_bound_how_many_requests_are_said_to_run_at_once() -> None:
    pool = PoolLimits(64, 16, 64, num_states=9)
    capacity = str(capacity_of(STATES, pool, limits_of(RouterConfig(), STATES, pool)))
    assert "(64 blocks of 16 tokens), 9 states of 1.0 MiB" in capacity
    assert "64 tokens, 4 at once" in capacity


def test_a_pool_in_which_no_request_has_its_two_states_is_refused() -> None:
    with pytest.raises(StartupFailed, match="room for 1 states of 1048576 bytes"):
        limits_of(RouterConfig(), STATES, PoolLimits(8, 16, 64, num_states=1))


@pytest.mark.parametrize(("flag", "has_them"), [("auto", True), ("model", True), ("none", False)])
def test_the_models_own_sampling_counts_unless_it_is_turned_off(flag: str, has_them: bool) -> None:
    info = replace(served_by("dense", is_invariant=True), sampling_defaults={"temperature": 0.6})
    limits = limits_of(RouterConfig(generation_config=flag), info, PoolLimits(8, 16, 64))
    assert limits.sampling_defaults == ({"temperature": 0.6} if has_them else {})


@pytest.mark.parametrize(("flag", "top_p"), [("auto", {"top_p": 0.9}), ("none", {})])
def test_what_the_operator_says_of_sampling_beats_the_models_own(
    flag: str, top_p: dict[str, float]
) -> None:
    own = {"temperature": 0.6, "top_p": 0.9}
    info = replace(served_by("dense", is_invariant=True), sampling_defaults=own)
    config = RouterConfig(generation_config=flag, override_generation_config={"temperature": 0.0})
    limits = limits_of(config, info, PoolLimits(8, 16, 64))
    assert limits.sampling_defaults == {"temperature": 0.0, **top_p}


@pytest.mark.parametrize("is_part", [False, True])
def test_a_model_that_also_sees_is_said_to_be_served_for_text_alone(is_part: bool) -> None:
    info = replace(served_by("dense", is_invariant=True), language_model_only=is_part)
    # As the shard's message.
    received = from_message(to_message(info, pb.InfoResponse), ModelInfo)
    pool = PoolLimits(8, 16, 64)
    told = server_info(RouterConfig(), 1, received, pool, limits_of(RouterConfig(), received, pool))
    assert told.language_model_only is is_part


DEFAULTS = {"temperature": 0.25, "top_p": 0.5, "top_k": 20.0, "repetition_penalty": 1.5}
CHATS = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}


@pytest.mark.parametrize(
    ("path", "body", "has_them"),
    [
        ("/v1/chat/completions", CHATS, True),
        ("/v1/completions", {"prompt": "hello", "max_tokens": 3}, True),
        ("/v1/responses", {"input": "hello", "max_output_tokens": 3}, True),
        ("/v1/messages", {**CHATS, "model": "tgi"}, True),
        ("/generate", {"inputs": "hello", "parameters": {"max_new_tokens": 3}}, False),
    ],
)
async def test_what_a_client_leaves_out_the_model_says_but_on_tgis_routes(
    path: str, body: dict[str, Any], has_them: bool
) -> None:
    shard = FakeShard(script=lambda _: byte_ids("a")[0])
    async with housing(shard, sampling_defaults=DEFAULTS) as house, house.client as client:
        answer = await client.post(path, json=body)
        assert answer.status_code == 200
        own = await client.post(path, json=with_own(path, body))
        assert own.status_code == 200
    prefills = [message for name, message in shard.calls if name == "Prefill"]
    first, second = (new.sampling for each in prefills for new in each.batch.requests)
    if not has_them:
        assert (first.do_sample, first.repetition_penalty) == (False, 1.0)
        return
    assert (first.do_sample, first.temperature, first.top_p) == (True, 0.25, 0.5)
    assert (first.top_k, first.repetition_penalty) == (20, 1.5)
    assert (second.temperature, second.top_p, second.top_k) == (1.0, 0.75, 20)


def with_own(path: str, body: dict[str, Any]) -> dict[str, Any]:
    """The body with two of the parameters."""
    own = {"temperature": 1.0, "top_p": 0.75}
    if path == "/generate":
        return {**body, "parameters": {**body["parameters"], **own}}
    return {**body, **own}


NATIVE = {"inputs": "hello", "parameters": {"max_new_tokens": 3}}
CHAT = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 3}
PROMPT = {"prompt": ["hello", "world"], "max_tokens": 3}
TIMES = ["total", "validation", "queue", "inference"]
FIRST = {"x-compute-type", "x-compute-characters"}


def timing(answer: Any) -> set[str]:
    ours = ("x-compute", "x-total", "x-validation", "x-queue", "x-inference", "x-time-per")
    return {name for name in answer.headers if name.startswith((*ours, "x-prompt", "x-generated"))}


WHOLE: list[tuple[Any, ...]] = [
    ("/", NATIVE, 5, 5, 3),
    ("/generate", NATIVE, 5, 5, 3),
    ("/invocations", NATIVE, 5, 5, 3),
    ("/v1/chat/completions", CHAT, 12, 12, 3),
    ("/v1/completions", PROMPT, 10, 10, 6),
    ("/invocations", PROMPT, 10, 10, 6),
    ("/vertex", {"instances": [NATIVE, NATIVE]}, 10, 10, 6),
]


async def test_whole_answers_have_their_times() -> None:
    async with housing(FakeShard(script=saying("a" * 99, 0))) as house, house.client as client:
        for path, body, num_characters, num_prompt_tokens, num_generated_tokens in WHOLE:
            headers = (await client.post(path, json=body)).headers
            assert headers["x-compute-type"] == "test"
            assert headers["x-compute-characters"] == str(num_characters)
            assert headers["x-prompt-tokens"] == str(num_prompt_tokens)
            assert headers["x-generated-tokens"] == str(num_generated_tokens)
            assert 0 < float(headers["x-compute-time"]) < 10
            for name in TIMES:
                assert 0 <= int(headers[f"x-{name}-time"]) < 10_000
            assert 0 <= int(headers["x-time-per-token"]) <= int(headers["x-total-time"])


STREAMED: list[tuple[Any, ...]] = [
    ("/", {**NATIVE, "stream": True}),
    ("/generate_stream", NATIVE),
    ("/invocations", {**NATIVE, "stream": True}),
    ("/v1/chat/completions", {**CHAT, "stream": True}),
    ("/v1/completions", {**PROMPT, "stream": True}),
]


async def test_streams_have_what_is_known_before_them() -> None:
    async with housing(FakeShard(script=saying("a" * 99, 0))) as house, house.client as client:
        for path, body in STREAMED:
            answer = await client.post(path, json=body)
            assert timing(answer) == FIRST
            assert answer.headers["x-accel-buffering"] == "no"
            assert answer.headers["cache-control"] == "no-cache"


async def test_a_truncated_prompt_counts_as_it_was_read() -> None:
    body = {"inputs": "hello", "parameters": {"truncate": 2, "max_new_tokens": 1}}
    async with housing(FakeShard()) as house, house.client as client:
        headers = (await client.post("/generate", json=body)).headers

    assert (headers["x-compute-characters"], headers["x-prompt-tokens"]) == ("5", "2")


async def test_of_best_of_the_winner_s_tokens_count() -> None:
    body = {"inputs": "hello", "parameters": {"best_of": 2, "top_k": 2, "max_new_tokens": 3}}
    async with housing(FakeShard(script=saying("a" * 99, 0))) as house, house.client as client:
        headers = (await client.post("/generate", json=body)).headers

    assert headers["x-generated-tokens"] == "3"


async def test_errors_have_no_times() -> None:
    async with housing(FakeShard()) as house, house.client as client:
        for path in ("/", "/generate", "/v1/chat/completions", "/v1/completions"):
            answer = await client.post(path, json={"inputs": "", "prompt": "", "messages": []})
            assert timing(answer) == set()
