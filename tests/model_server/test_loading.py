"""Loading: a whole checkpoint becomes a model that knows itself, a faulty one a reason."""

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors import safe_open
from safetensors.torch import load_file, save_file

from model_server import zoo
from model_server.checkpoint.check import ModelSettings, check_checkpoint, files_of
from model_server.config import ServeConfig, parse
from model_server.engine.distributed import World
from model_server.errors import (
    ArchitectureUnfit,
    CheckpointBroken,
    ConfigRefused,
    ModelRefused,
    OutOfMemory,
    RanksLost,
)
from model_server.executor.executor import PagedModel
from model_server.loading import load as load_all
from model_server.loading import load_model, prepare, widen
from model_server.recipe.proof import read_recipe
from model_server.recipe.recipe import Unreadable
from model_server.step import SequenceStep, StepInputs
from tests.model_server.checkpoint import tiny_models
from tests.model_server.recipe import families


def load(folder: Path, **settings: Any) -> PagedModel:
    """Load on the CPU, in float32 by default."""
    options: dict[str, Any] = {"dtype": "float32", **settings}
    return load_model(ModelSettings(folder, torch.device("cpu"), **options), World())


@pytest.fixture
def llama(tmp_path: Path) -> Path:
    return tiny_models.save("llama", tmp_path / "llama")


def edit_json(path: Path, **changes: Any) -> None:
    content = json.loads(path.read_text()) if path.exists() else {}
    path.write_text(json.dumps({**content, **changes}))


def test_a_loaded_model_tells_what_the_router_must_know(llama: Path) -> None:
    model = load(llama)
    assert model.model_type == "llama"
    assert model.vocab_size == tiny_models.VOCAB_SIZE
    assert model.max_position_embeddings == 512
    assert model.window_len is None
    assert model.dtype == torch.float32
    # Keys and values of 2 layers, 2 heads, 16 numbers of 4 bytes.
    assert model.bytes_per_block == model.block_size * 2 * 2 * 2 * 16 * 4


def test_the_shortest_window_of_any_layer_is_told(tmp_path: Path) -> None:
    assert load(tiny_models.save("gemma3", tmp_path)).window_len == tiny_models.WINDOW_LEN


def test_every_end_that_a_file_names_ends_an_answer_and_contradictions_are_told(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit_json(llama / "generation_config.json", eos_token_id=7)
    edit_json(llama / "config.json", eos_token_id=[2, 9])
    edit_json(llama / "tokenizer.json", added_tokens=[{"id": 5, "content": "<|im_end|>"}])
    edit_json(llama / "tokenizer_config.json", eos_token={"content": "<|im_end|>"})
    assert load(llama).eos_token_ids == (7, 2, 9, 5)
    (line,) = [line for line in caplog.messages if "end tokens" in line]
    assert "generation_config.json 7; config.json 2, 9; tokenizer_config.json 5" in line


def test_an_end_that_the_model_does_not_have_is_none_and_is_told(
    llama: Path, caplog: pytest.LogCaptureFixture
) -> None:
    edit_json(llama / "generation_config.json", eos_token_id=[7, tiny_models.VOCAB_SIZE])
    edit_json(llama / "config.json", eos_token_id=None)
    assert load(llama).eos_token_ids == (7,)
    told = f"end tokens [{tiny_models.VOCAB_SIZE}] cannot be sampled"
    assert any(told in line for line in caplog.messages)


def test_eos_tokens_need_no_generation_config(llama: Path) -> None:
    (llama / "generation_config.json").unlink()
    edit_json(llama / "config.json", eos_token_id=5)
    assert load(llama).eos_token_ids == (5,)


@pytest.mark.parametrize(
    ("name", "rope", "limit"),
    [
        ("llama", {"rope_type": "default", "rope_theta": 1e4}, 512),
        (
            "phi3",
            {
                "rope_type": "longrope",
                "rope_theta": 1e4,
                "short_factor": [1.0] * 8,
                "long_factor": [2.0] * 8,
                "original_max_position_embeddings": 64,
            },
            64,
        ),
        ("llama", {"rope_type": "dynamic", "rope_theta": 1e4, "factor": 2.0}, 512),
    ],
)
def test_rope_that_changes_with_the_batch_ends_where_it_would_change(
    tmp_path: Path, name: str, rope: dict[str, Any], limit: int
) -> None:
    folder = tiny_models.save(name, tmp_path)
    original = {"original_max_position_embeddings": 64} if name == "phi3" else {}
    edit_json(folder / "config.json", rope_parameters=rope, **original)
    settings = ModelSettings(folder, torch.device("cpu"), dtype="float32")
    assert check_checkpoint(settings, 1).facts.max_position_embeddings == limit


def test_tied_embeddings_need_no_head_of_their_own(tmp_path: Path) -> None:
    folder = tiny_models.save("llama-tied", tmp_path)
    assert "lm_head.weight" not in load_file(folder / "model.safetensors")
    assert load(folder).vocab_size == tiny_models.VOCAB_SIZE


def test_a_step_gives_the_logits_of_the_rows_that_were_asked_for(llama: Path) -> None:
    model = load(llama)
    model.allocate(4)
    steps = [SequenceStep([5, 6, 7], 0, [0], 2), SequenceStep([9], 0, [2], 0)]
    inputs = StepInputs.build(
        steps, block_size=model.block_size, scratch_block_id=4, device=model.device
    )
    logits = model.forward(inputs)
    native = tiny_models.build("llama")(torch.tensor([[5, 6, 7]])).logits[0, 1:]
    assert logits.shape == (2, tiny_models.VOCAB_SIZE)
    torch.testing.assert_close(logits, native.detach(), atol=1e-4, rtol=1e-4)


def test_a_step_that_needs_no_logits_gives_none(llama: Path) -> None:
    model = load(llama)
    model.allocate(4)
    inputs = StepInputs.build(
        [SequenceStep([5, 6, 7], 0, [0], 0)],
        block_size=model.block_size,
        scratch_block_id=4,
        device=model.device,
    )
    assert model.forward(inputs).shape == (0, tiny_models.VOCAB_SIZE)


def test_a_pool_that_does_not_fit_leaves_none(llama: Path) -> None:
    model = load(llama)
    with pytest.raises(OutOfMemory, match="blocks of"):
        model.allocate(1 << 50)
    assert model.num_blocks is None


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "float32"])
def test_the_dtype_is_as_asked_for(llama: Path, dtype: str) -> None:
    assert load(llama, dtype=dtype).dtype == getattr(torch, dtype)


def test_the_automatic_dtype_of_a_cpu_is_one_that_it_computes_in(llama: Path) -> None:
    has_bfloat16 = torch.ops.mkldnn._is_mkldnn_bf16_supported()
    expected = torch.bfloat16 if has_bfloat16 else torch.float32
    assert load(llama, dtype="auto").dtype == expected


def _drop_a_weight(folder: Path) -> None:
    weights = load_file(folder / "model.safetensors")
    del weights["model.layers.1.mlp.up_proj.weight"]
    save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})


def _widen_the_config(folder: Path) -> None:
    edit_json(folder / "config.json", intermediate_size=112)


def _drop_a_layer_of_the_config(folder: Path) -> None:
    edit_json(folder / "config.json", num_hidden_layers=3)


def _truncate(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])


@pytest.mark.parametrize(
    ("damage", "error", "reason"),
    [
        (_drop_a_weight, CheckpointBroken, r"lacks weights .* \(1\): model.layers.1.mlp.up_proj"),
        (_drop_a_layer_of_the_config, CheckpointBroken, "lacks weights that the model needs"),
        (_widen_the_config, CheckpointBroken, r"the shape \[96, 64\], and by config.json"),
        (_truncate, CheckpointBroken, "is truncated"),
        (
            lambda folder: edit_json(folder / "config.json", model_type="no-such-model"),
            ModelRefused,
            "no-such-model",
        ),
        (
            lambda folder: edit_json(folder / "config.json", num_attention_heads=0),
            ModelRefused,
            "cannot",
        ),
        (
            lambda folder: edit_json(folder / "config.json", hidden_size="wide"),
            ModelRefused,
            "'hidden_size' expected int, got str",
        ),
        (
            lambda folder: (folder / "generation_config.json").write_text("{"),
            CheckpointBroken,
            "generation_config.json",
        ),
    ],
)
def test_a_faulty_checkpoint_is_refused_with_the_reason(
    llama: Path, damage: Callable[[Path], object], error: type[Exception], reason: str
) -> None:
    damage(llama)
    with pytest.raises(error, match=reason):
        load(llama)


def test_an_encoder_decoder_is_no_causal_language_model(tmp_path: Path) -> None:
    transformers.BartConfig().save_pretrained(tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ArchitectureUnfit, match="bart is an encoder and a decoder"):
        load(tmp_path)


def test_an_encoder_is_no_causal_language_model(tmp_path: Path) -> None:
    transformers.ViTConfig().save_pretrained(tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ArchitectureUnfit, match="vit is no causal language model"):
        load(tmp_path)


def test_code_of_a_checkpoint_is_not_run_unasked(tmp_path: Path) -> None:
    config = {
        "model_type": "own-thing",
        "auto_map": {"AutoConfig": "thing.C", "AutoModelForCausalLM": "thing.M"},
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    (tmp_path / "thing.py").write_text("raise SystemExit('ran')")
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ModelRefused, match="trust"):
        load(tmp_path)


def test_an_architecture_that_cannot_be_paged_is_refused_before_its_weights(tmp_path: Path) -> None:
    transformers.BloomConfig().save_pretrained(tmp_path)
    save_file({}, tmp_path / "model.safetensors")
    with pytest.raises(ArchitectureUnfit, match="BloomForCausalLM cannot be served"):
        load(tmp_path)


def test_an_unknown_attention_backend_is_refused(llama: Path) -> None:
    with pytest.raises(ConfigRefused, match="no-such-attention"):
        load(llama, attention="no-such-attention")


def test_an_unknown_dtype_is_refused(llama: Path) -> None:
    with pytest.raises(ModelRefused, match="dtype 'int3'"):
        load(llama, dtype="int3")


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_logits_are_bitwise_the_same_whatever_the_load(llama: Path, dtype: str) -> None:
    model = load(llama, dtype=dtype)
    if not model.is_invariant:
        pytest.skip("torch's matrix products may add up in another order in another step")

    def last_logits(chunk_lens: Sequence[int], num_others: int) -> torch.Tensor:
        """Of a sequence of 40 tokens, computed in these chunks beside other prompts."""
        model.allocate(60)
        done = 0
        for chunk_len in chunk_lens:
            token_ids = [(7 * i) % 150 + 3 for i in range(done, done + chunk_len)]
            steps = [SequenceStep(token_ids, done, [9, 2, 5], 1)]
            steps += [SequenceStep([i + 3] * (i % 5 + 1), 0, [20 + i]) for i in range(num_others)]
            inputs = StepInputs.build(
                steps, block_size=model.block_size, scratch_block_id=60, device=model.device
            )
            logits = model.forward(inputs)[0]
            done += chunk_len
        return logits

    alone = last_logits([40], 0)
    for chunk_lens, num_others in (
        ([40], 6),
        ([39, 1], 0),
        ([39, 1], 31),
        ([1] * 40, 2),
        ([17, 23], 3),
    ):
        assert torch.equal(last_logits(chunk_lens, num_others), alone), (chunk_lens, num_others)


@pytest.mark.parametrize("name", ["llama", "gpt2", "mixtral"])
def test_weights_that_are_widened_from_their_files_are_those_of_a_wide_checkpoint(
    name: str, tmp_path: Path
) -> None:
    narrow = tiny_models.build(name).bfloat16()
    narrow.save_pretrained(tmp_path / "narrow")
    narrow.float().save_pretrained(tmp_path / "wide")
    steps = [SequenceStep([5, 6, 7] * 5, 0, [0, 1], 15), SequenceStep([9], 0, [2], 1)]

    logits = []
    executors = []
    for folder in ("narrow", "wide"):
        model = load(tmp_path / folder, dtype="float32")
        model.allocate(4)
        inputs = StepInputs.build(
            steps, block_size=model.block_size, scratch_block_id=4, device=model.device
        )
        logits.append(model.forward(inputs))
        executors.append(model.executor)

    assert executors[0] == executors[1]
    assert torch.equal(*logits)


def test_experts_that_rounding_exchanges_do_not_keep_a_model_from_its_recipe(
    tmp_path: Path,
) -> None:
    """Its logits in bfloat16 are far from those in float32; of the same experts they are not."""
    tiny_models.build("dots1").bfloat16().save_pretrained(tmp_path)
    assert load(tmp_path, dtype="float32").fallback_reason is None


def test_what_a_delta_rule_forgets_is_read_with_all_digits_of_the_checkpoint(
    tmp_path: Path,
) -> None:
    """Near one, bfloat16 has three of them."""
    config = families.family("qwen3_5")
    stored = zoo.build_small(config, trust_remote_code=False).module.bfloat16()
    rule = stored.model.layers[0].linear_attn
    rule.A_log.data = torch.linspace(1.0, 1.001, 8)
    stored.save_pretrained(tmp_path)
    cpu = torch.device("cpu")
    model = zoo.load(
        tmp_path, config, dtype=torch.bfloat16, device=cpu, trust_remote_code=False, num_shards=1
    )
    names = read_recipe(config, trust_remote_code=False).wide_names()

    widen(model.module, names, tmp_path)

    assert len(names) == 8  # two in each of four layers
    read = model.module.model.layers[0].linear_attn
    assert torch.equal(read.A_log, rule.A_log)
    assert read.dt_bias.dtype == torch.float32
    assert read.norm.weight.dtype == torch.bfloat16
    assert model.native_logits(torch.arange(9)).isfinite().all()
    model.module.model.norm.bias = torch.nn.Parameter(torch.zeros(3, dtype=torch.bfloat16))
    with pytest.raises(Unreadable, match=r"no model\.norm\.bias"):
        widen(model.module, {"model.norm.bias"}, tmp_path)


def test_rounding_to_4_bits_is_no_error_of_the_executor(llama: Path) -> None:
    # It moves the logits of random weights farther than a proof of the same weights would let pass.
    assert load(llama, quantize="int4").executor.startswith("dense, int4+int8, ")


def test_rows_whose_largest_numbers_leave_no_digits_to_the_others_are_refused_in_int8(
    llama: Path,
) -> None:
    weights = load_file(llama / "model.safetensors")
    for name, weight in weights.items():
        if name.endswith("layernorm.weight"):
            weight[0] = 3000.0
        elif name.endswith(("q_proj.weight", "gate_proj.weight", "up_proj.weight")):
            weight[:, 0] /= 3000.0
    save_file(weights, llama / "model.safetensors", {"format": "pt"})
    with pytest.raises(ModelRefused, match="int4 has a scale for each group of a row"):
        load(llama, quantize="int8")
    assert load(llama, quantize="int4").executor.startswith("dense, int4+int8, ")


def test_weights_are_held_to_what_an_earlier_shard_left_of_them(
    llama: Path, tmp_path: Path
) -> None:
    kept = tmp_path / "evidence.safetensors"
    assert load(llama, kept_evidence=kept).executor.startswith("dense, ")
    left = load_file(kept)
    with safe_open(kept, framework="pt") as file:
        metadata = file.metadata()
    save_file({**left, "exact": -left["exact"], "native": -left["native"]}, kept, metadata)
    # It is not computed again: what is wrong there is found.
    assert load(llama, kept_evidence=kept).executor.startswith("zoo, ")
    os.utime(llama / "model.safetensors")
    # The weights may be others now, and so it is computed again.
    assert load(llama, kept_evidence=kept).executor.startswith("dense, ")
    assert torch.equal(load_file(kept)["exact"], left["exact"])


def test_a_checkpoint_is_another_one_once_a_file_of_it_is(llama: Path) -> None:
    before = files_of(llama)
    assert files_of(llama) == before
    os.utime(llama / "config.json")
    written = files_of(llama)
    assert written != before
    (llama / "chat_template.jinja").write_text("")
    assert files_of(llama) not in (before, written)
    with pytest.raises(CheckpointBroken, match="No such file"):
        files_of(llama / "gone")


def test_what_was_prepared_is_used_unless_a_file_of_the_checkpoint_has_changed(llama: Path) -> None:
    settings = parse(["serve", str(llama), "--device", "cpu"])
    assert isinstance(settings, ServeConfig)
    prepared = prepare(settings)

    def on_lost(error: RanksLost) -> None:
        raise error

    assert load_all(settings, on_lost, prepared).constraints is prepared.constraints
    os.utime(llama / "model.safetensors")
    assert load_all(settings, on_lost, prepared).constraints is not prepared.constraints
