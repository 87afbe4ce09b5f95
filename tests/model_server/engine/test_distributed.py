"""Two ranks are one model: the same tokens as one rank, and an end when one of them fails."""

import os
import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from model_server.adapter import LinearShapes
from model_server.engine import memory
from model_server.engine.distributed import FAILED, LATE, Drawn, World
from model_server.engine.warmup import StepRoom
from model_server.errors import ModelRefused, OutOfMemory, RanksDiverged
from model_server.step import StepInputs
from processes.addresses import free_port
from proto.contract import SamplingParams
from tests.listeners import is_every_interface, listening_at
from tests.model_server import lora_folders, seeing_models
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import (
    NUM_BLOCKS,
    Driver,
    Work,
    load,
    num_states,
    on_two_ranks,
    warmed_up,
)

pytestmark = pytest.mark.slow

NUM_NEW = 10
CPU = torch.device("cpu")
# One that is divided, one whose fused weights are, experts, one of which each rank holds all, one
# that is a part of what it was trained in, and one with states, which each rank has whole.
FAMILIES = ("llama", "gpt_neox", "qwen3_moe", "gpt2", "qwen2_5_vl", "qwen3_5")
OTHERS = tuple(
    name for name in (*tiny_models.CONFIGS, *tiny_models.HYBRIDS) if name not in FAMILIES
)
# Of one key head in a block: two layers, 16 tokens, keys and values of 16 floats.
_HEAD_BYTES = 2 * 16 * 2 * 16 * 4
# Whose outputs, and whose inputs, are divided.
ADAPTED: dict[str, LinearShapes] = {
    "llama": {
        f"model.layers.{layer}.{name}": shape
        for layer in range(2)
        for name, shape in (
            ("self_attn.q_proj", (64, 64)),
            ("self_attn.o_proj", (64, 64)),
            ("mlp.up_proj", (96, 64)),
            ("mlp.down_proj", (64, 96)),
        )
    },
    "gpt_neox": {
        f"gpt_neox.layers.{layer}.{name}": shape
        for layer in range(2)
        for name, shape in (
            ("attention.query_key_value", (192, 64)),
            ("attention.dense", (64, 64)),
            ("mlp.dense_h_to_4h", (96, 64)),
        )
    },
}
PROMPTS = tuple(
    [(index * 31 + position * 17 + 7) % 150 + 3 for position in range(length)]
    for index, length in enumerate((5, 41, 1))
)

# One with three positions and rows behind layers, one with neither; and the images of prompts.
SEEING = ("llava", "qwen3_vl")
SHOWN = ((0,), (0, 1), ())

# Outputs of two tokens, so that drafts are right now and then.
_REPETITIVE = SamplingParams(do_sample=True, seed=7, logit_bias={5: 40.0, 6: 40.0})
# One token, none, forced tokens behind the first, and an end that the tokens do not show.
ROWS = (Drawn((5,)), FAILED, Drawn((7, 8, 9)), Drawn((3,), is_over=True), LATE)
PLAIN_ROWS = (Drawn((5,)), FAILED, LATE)


class Mirror:
    """Drives rank 0 and repeats its calls on the other rank, as the router does."""

    def __init__(self, folders: dict[str, Path]) -> None:
        self.folders = folders

    def __call__(self, world: World) -> dict[str, Any]:
        return {name: self._answers(name, world) for name in self.folders}

    def _answers(self, name: str, world: World) -> dict[str, Any]:
        model = load(self.folders[name], world)
        driver = ShadowDriver(
            warmed_up(model, world), NUM_BLOCKS, model.block_size, num_states=num_states(model)
        )
        for index, prompt in enumerate(PROMPTS):
            driver.add(index, prompt, NUM_NEW)
        for _ in range(6):
            driver.step(16)
        driver.preempt(1)
        driver.run(16)
        answers: dict[str, Any] = {
            "outputs": driver.outputs,
            "num_kv_heads": model.bytes_per_block // _HEAD_BYTES,
        }
        if name == "llama":
            runner = warmed_up(model, world)
            drafting = ShadowDriver(runner, NUM_BLOCKS, model.block_size, num_drafts=3)
            for index, prompt in enumerate(PROMPTS):
                drafting.add(index, prompt, 60, sampling=_REPETITIVE)
            for _ in range(20):
                drafting.step(16)
            answers["drafted"] = drafting.outputs
        return answers


class _Seeing:
    """Answers about images, of which each rank looks at each."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def __call__(self, world: World) -> dict[str, dict[int, list[int]]]:
        return {name: self._answers(name, world) for name in SEEING}

    def _answers(self, name: str, world: World) -> dict[int, list[int]]:
        one = seeing_models.build(name)
        model = load(self.folder / name, world, noise=one.noise)
        assert model.sight is not None, model.blind_reason
        driver = ShadowDriver(warmed_up(model, world), NUM_BLOCKS, model.block_size)
        for index, shown in enumerate(SHOWN):
            prompt = one.prompt(*shown)
            driver.add(index, prompt.token_ids, NUM_NEW, images=prompt.images, ignore_eos=True)
        for _ in range(6):
            driver.step(16)
        driver.preempt(1)
        driver.run(16)
        return driver.outputs


class _Adapted:
    """Answers with two adapters and without, and what either rank holds of one."""

    def __init__(self, model: Path, adapters: Sequence[Path], attention: str = "auto") -> None:
        self.model = model
        self.adapters = adapters
        self.attention = attention

    def __call__(self, world: World) -> tuple[dict[int, list[int]], int]:
        model = load(self.model, world, attention=self.attention, max_loras=2)
        runner = warmed_up(model, world)
        num_bytes = 0
        for adapter_id, folder in enumerate(self.adapters, start=1):
            adapter = runner.read_adapter(adapter_id, folder)
            runner.load_adapter(adapter_id, adapter)
            num_bytes = adapter.packed.num_bytes
        driver = ShadowDriver(runner, NUM_BLOCKS, model.block_size)
        for index, prompt in enumerate(PROMPTS):
            driver.add(index, prompt, NUM_NEW, adapter_id=index or None)
        driver.run(16)
        return driver.outputs, num_bytes


class ShadowDriver(Driver):
    """Learns a rank's tokens from its own books, since only rank 0 answers with generations."""

    def _apply(self, output: Any, chunk_lens: dict[int, int]) -> None:
        if output.generations:
            super()._apply(output, chunk_lens)
            return
        for request_id, chunk_len in chunk_lens.items():
            request = self.requests[request_id]
            samples = 0 < chunk_len == request.uncomputed_len
            request.computed_len += chunk_len
            if samples:
                self._learn(request_id, output)

    def _learn(self, request_id: int, output: Any) -> None:
        request = self.requests[request_id]
        if request_id in output.request_ids:
            state = self.runner._held.sequences[request_id]
            request.is_decoding = True
            request.token_ids = list(state.token_ids)
            # One less than was computed, where the draw was late.
            request.computed_len = state.computed_len
        else:
            # Its last token went with it; that it ended is what the other rank must agree on.
            request.token_ids.append(0)
            request.finish_reason = "ended"  # type: ignore[assignment]


def _refusal(folder: Path, world: World) -> str:
    try:
        load(folder, world)
    except ModelRefused as refusal:
        return str(refusal)
    return "loaded"


def _tokens(world: World) -> Any:
    if world.is_first:
        world.broadcast_drawn(ROWS, 5)
        world.broadcast_drawn(PLAIN_ROWS, 3)
        world.abandon(2)
        return world.smallest(30)
    received = world.broadcast_drawn(None, 5), world.broadcast_drawn(None, 3)
    with pytest.raises(RanksDiverged, match="rank 0 abandoned the step"):
        world.broadcast_drawn(None, 2)
    return received, world.smallest(20)


def _refused_for_want_of_room(world: World) -> list[int]:
    """Of some steps those that are refused; the second rank has less room than the first."""
    room = StepRoom(world, CPU, bytes_per_token=4)
    room_bytes = 400 - 200 * world.rank
    refused = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "has_room", lambda device, num_bytes: num_bytes <= room_bytes)
        for num_tokens in (10, 50, 51, 120):
            try:
                room.require(num_tokens)
            except OutOfMemory:
                refused.append(num_tokens)
    return refused


def _listening_at(world: World) -> list[str]:
    return listening_at(os.getpid())


class _FailingStep:
    """A step that one rank fails in; what it says on this rank, and after how long."""

    def __init__(self, folder: Path, failing_rank: int, *, after_forward: bool) -> None:
        self.folder = folder
        self.failing_rank = failing_rank
        self.after_forward = after_forward

    def __call__(self, world: World) -> tuple[str, float]:
        model = load(self.folder, world)
        driver = ShadowDriver(warmed_up(model, world), NUM_BLOCKS, model.block_size)
        driver.add(0, PROMPTS[0], NUM_NEW)
        if world.rank == self.failing_rank:
            forward = model.forward

            def fail(inputs: StepInputs) -> torch.Tensor:
                if self.after_forward:
                    forward(inputs)
                raise torch.OutOfMemoryError("no memory left")

            model.forward = fail  # type: ignore[method-assign]
        started_s = time.monotonic()
        try:
            driver.step()
        except RanksDiverged as error:
            return str(error), time.monotonic() - started_s
        return "noticed nothing", 0.0


def _all(works: dict[str, Work], world: World) -> dict[str, Any]:
    return {name: work(world) for name, work in works.items()}


def _save_undividable(folder: Path) -> Path:
    config = transformers.LlamaConfig(
        vocab_size=160,
        hidden_size=48,
        intermediate_size=64,
        num_hidden_layers=1,
        num_attention_heads=6,
        num_key_value_heads=3,
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    return folder


def _save_seeing(folder: Path) -> Path:
    for name in SEEING:
        seeing_models.build(name).save(folder / name)
    return folder


def _adapters(folder: Path, name: str) -> list[Path]:
    shapes = ADAPTED[name]
    found = [folder / f"{name}-{seed}" for seed in range(2)]
    if not found[0].exists():
        for seed, path in enumerate(found):
            lora_folders.save(path, shapes, seed=seed)
    return found


@pytest.fixture(scope="module")
def answers(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], dict[str, Any]]:
    """What either rank returned. All in one pair of processes: to start them takes long."""
    folder = tmp_path_factory.mktemp("models")
    models = {name: tiny_models.save(name, folder / name) for name in FAMILIES}
    works: dict[str, Work] = {
        "models": Mirror(models),
        "undividable": partial(_refusal, _save_undividable(folder / "undividable")),
        "tokens": _tokens,
        "no room": _refused_for_want_of_room,
        "listening": _listening_at,
        "adapters": _Adapted(models["llama"], _adapters(folder, "llama")),
        "fused adapters": _Adapted(models["gpt_neox"], _adapters(folder, "gpt_neox")),
        "images": _Seeing(_save_seeing(folder)),
        # The ranks have left their collectives together, so it may be one of several works.
        "failed": _FailingStep(models["llama"], 0, after_forward=True),
    }
    return _answers_of(works)


def _answers_of(works: dict[str, Work]) -> tuple[dict[str, Any], dict[str, Any]]:
    first, second = on_two_ranks(partial(_all, works))
    assert isinstance(first, dict), first
    assert isinstance(second, dict), second
    return first, second


@pytest.mark.parametrize("name", FAMILIES)
def test_two_ranks_answer_as_generate_does(
    answers: tuple[dict[str, Any], dict[str, Any]], name: str
) -> None:
    _require_those_of_generate(answers, name)


@pytest.mark.parametrize("name", SEEING)
def test_two_ranks_answer_about_images_as_their_class_does(
    answers: tuple[dict[str, Any], dict[str, Any]], name: str
) -> None:
    first, second = (answer["images"][name] for answer in answers)
    one = seeing_models.build(name)
    expected = {index: one.greedy(one.prompt(*shown), NUM_NEW) for index, shown in enumerate(SHOWN)}
    assert first == expected
    heads = {index: tokens[:-1] for index, tokens in expected.items()}
    assert {index: tokens[:-1] for index, tokens in second.items()} == heads


@pytest.mark.nightly
def test_two_ranks_of_every_family_answer_as_generate_does(tmp_path: Path) -> None:
    mirror = Mirror({name: tiny_models.save(name, tmp_path / name) for name in OTHERS})
    answers = _answers_of({"models": mirror})
    for name in OTHERS:
        _require_those_of_generate(answers, name)


def _require_those_of_generate(answers: tuple[dict[str, Any], dict[str, Any]], name: str) -> None:
    first, second = (answer["models"][name]["outputs"] for answer in answers)
    reference = tiny_models.build(name)
    expected = {
        index: tiny_models.greedy(reference, prompt, NUM_NEW)
        for index, prompt in enumerate(PROMPTS)
    }
    assert first == expected
    # The other rank holds the same tokens, but does not get the last one of an ended sequence.
    heads = {index: tokens[:-1] for index, tokens in expected.items()}
    assert {index: tokens[:-1] for index, tokens in second.items()} == heads


def test_ranks_agree_on_drafts_and_on_what_became_of_them(
    answers: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    first, second = (answer["models"]["llama"]["drafted"] for answer in answers)
    assert first == second
    assert sum(map(len, first.values())) > 3 * 20


@pytest.mark.parametrize("name", ["llama", "gpt_neox"])
def test_two_ranks_answer_with_adapters_as_one_does(
    answers: tuple[dict[str, Any], dict[str, Any]], name: str, tmp_path: Path
) -> None:
    folders = _adapters(tmp_path, name)
    one = _Adapted(tiny_models.save(name, tmp_path / "model"), folders, attention="reference")
    expected, num_bytes = one(World())
    work = "adapters" if name == "llama" else "fused adapters"
    (first, half), (_, other_half) = (answer[work] for answer in answers)
    assert first == expected
    plain = tiny_models.build(name)
    greedy = [tiny_models.greedy(plain, prompt, NUM_NEW) for prompt in PROMPTS]
    assert [first[index] == greedy[index] for index in range(3)] == [True, False, False]
    assert half == other_half < num_bytes


def test_keys_and_values_are_divided_between_the_ranks(
    answers: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    for answer in answers:
        assert answer["models"]["llama"]["num_kv_heads"] == 1
        assert answer["models"]["gpt_neox"]["num_kv_heads"] == 2
        # transformers has no plan for it: each rank holds all of it.
        assert answer["models"]["gpt2"]["num_kv_heads"] == 4


def test_heads_that_cannot_be_divided_are_refused_with_the_numbers(
    answers: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    for answer in answers:
        assert "num_key_value_heads 3 is no multiple of 2 shards" in answer["undividable"]


def test_rank_0_decides_for_all(answers: tuple[dict[str, Any], dict[str, Any]]) -> None:
    assert [answer["tokens"] for answer in answers] == [20, ((ROWS, PLAIN_ROWS), 20)]


def _survive(world: World) -> str:
    if not world.is_first:
        return "left"
    try:
        world.broadcast_drawn((Drawn((1,)),), 1)
        world.smallest(1)
    except RanksDiverged as error:
        return str(error)
    return "noticed nothing"


def test_a_rank_that_is_gone_is_noticed() -> None:
    first, second = on_two_ranks(_survive)
    assert second == "left"
    assert "rank 0 lost the others" in first


def test_no_rank_listens_at_every_interface(
    answers: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    addresses = [answer["listening"] for answer in answers]
    assert all(addresses)
    assert not [one for rank in addresses for one in rank if is_every_interface(one)]


def test_the_address_where_ranks_meet_is_the_machines_own() -> None:
    with pytest.raises(RanksDiverged, match=r"at tcp://192\.0\.2\.1:.* Cannot assign"):
        World.connect(
            rank=0,
            world_size=2,
            master_addr="192.0.2.1",
            master_port=free_port(),
            device=torch.device("cpu"),
            load_timeout_s=1.0,
        )


def test_a_rank_that_never_comes_is_given_up() -> None:
    with pytest.raises(RanksDiverged, match="rank 0 of 2 could not meet the others at tcp://"):
        World.connect(
            rank=0,
            world_size=2,
            master_addr="127.0.0.1",
            master_port=free_port(),
            device=torch.device("cpu"),
            load_timeout_s=1.0,
        )


@pytest.mark.parametrize("failing_rank", [0, 1])
def test_a_rank_that_never_enters_the_forward_ends_the_step_soon_on_all(
    tmp_path: Path, failing_rank: int
) -> None:
    folder = tiny_models.save("llama", tmp_path)
    said = on_two_ranks(_FailingStep(folder, failing_rank, after_forward=False))
    _require_soon_said(said, failing_rank)


def test_a_step_that_fails_on_rank_0_ends_soon_on_all(
    answers: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    _require_soon_said([answer["failed"] for answer in answers], failing_rank=0)


def _require_soon_said(answers: Sequence[tuple[str, float]], failing_rank: int) -> None:
    for rank, (said, took_s) in enumerate(answers):
        assert f"rank {rank} " in said
        # Well below the step's time limit.
        assert took_s < 15.0
    assert "OutOfMemoryError: no memory left" in answers[failing_rank][0]


def test_one_rank_needs_no_group() -> None:
    world = World()
    assert world.broadcast_drawn(ROWS, 5) == ROWS
    assert world.smallest(4) == 4


def test_a_step_that_one_rank_has_no_room_for_is_refused_by_all(
    answers: tuple[dict[str, Any], dict[str, Any]],
) -> None:
    assert [answer["no room"] for answer in answers] == [[51, 120], [51, 120]]


def test_one_rank_alone_tries_the_step_instead() -> None:
    StepRoom(World(), CPU, bytes_per_token=1 << 50).require(1000)
