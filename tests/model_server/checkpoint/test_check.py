"""A model checked before its weights are read: what is known then, and which faults it refuses."""

import json
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from model_server import zoo
from model_server.checkpoint import checkpoint
from model_server.checkpoint.check import (
    CheckedCheckpoint,
    ModelSettings,
    _resolve_dtype,
    check_checkpoint,
    device_of,
    forecast,
    unfit_reason,
    unfit_reason_on_cuda,
)
from model_server.config import CheckConfig
from model_server.engine import memory
from model_server.engine.distributed import World
from model_server.errors import (
    ArchitectureUnfit,
    CheckpointBroken,
    ConfigRefused,
    ModelRefused,
    OutOfMemory,
)
from model_server.loading import load_model
from model_server.recipe.recipe import Conv, Delta, Mamba2, Mixer, Moe, Recipe
from processes.capacity import Capacity, Pool
from tests.byte_tokenizer import save_byte_tokenizer
from tests.model_server import lora_folders, seeing_models
from tests.model_server.checkpoint import tiny_models
from tests.model_server.engine.driver import load, runner_of
from tests.model_server.executor.decoders import decoder


def look(folder: Path, world_size: int = 1, **options: Any) -> CheckedCheckpoint:
    settings = ModelSettings(folder, torch.device("cpu"), **{"dtype": "float32", **options})
    return check_checkpoint(settings, world_size)


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2", "mixtral"])
def test_the_bytes_of_the_weights_are_known_before_they_are_read(name: str, tmp_path: Path) -> None:
    folder = tiny_models.save(name, tmp_path)
    stored = load_file(folder / "model.safetensors").values()
    num_bytes = sum(tensor.numel() * 4 for tensor in stored)
    assert look(folder).weights_bytes == num_bytes
    assert look(folder, dtype="bfloat16").weights_bytes == num_bytes // 2


def test_what_is_not_for_text_counts_as_nothing_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tiny_models.save("llava", tmp_path)
    stored = load_file(folder / "model.safetensors").items()
    num_bytes = sum(
        tensor.numel() * 4
        for name, tensor in stored
        if not name.startswith(("vision_tower", "multi_modal_projector"))
    )
    with caplog.at_level("INFO"):
        checked = look(folder)
    assert checked.takes_more_than_text
    assert checked.weights_bytes == num_bytes
    assert (checked.image_token_id, checked.blind_reason) == (
        None,
        "its checkpoint has no processor: processor_config.json or preprocessor_config.json",
    )
    told = [message for message in caplog.messages if "images are not served" in message]
    assert len(told) == 1
    assert told[0].endswith("not loaded: model.vision_tower, model.multi_modal_projector")
    assert not look(tiny_models.save("llama", tmp_path)).takes_more_than_text


def test_what_may_see_is_counted_whole(tmp_path: Path) -> None:
    one = seeing_models.build("llava")
    one.save(tmp_path)
    checked = look(tmp_path)
    assert (checked.image_token_id, checked.blind_reason) == (seeing_models.IMAGE_ID, None)
    assert checked.num_parameters == sum(each.numel() for each in one.module.parameters())
    one.module.config.image_token_index = seeing_models.VOCAB_SIZE
    one.module.config.image_token_id = seeing_models.VOCAB_SIZE
    one.module.config.save_pretrained(tmp_path)
    assert look(tmp_path).blind_reason == "image_token_id 160 is none of its 160 tokens"


def test_bfloat16_stays_so_where_a_recipe_computes_float32(tmp_path: Path) -> None:
    wide = look(tiny_models.save("llama", tmp_path))
    tiny_models.build("llama").bfloat16().save_pretrained(tmp_path)
    narrow = look(tmp_path)
    assert (narrow.dtype, narrow.weights_dtype) == (torch.float32, torch.bfloat16)
    assert wide.weights_bytes == 2 * (narrow.weights_bytes or 0)
    in_its_class = look(tmp_path, attention="sdpa")
    assert in_its_class.weights_dtype == torch.float32


def test_ranks_divide_the_bytes_where_they_divide_the_weights(tmp_path: Path) -> None:
    whole = look(tiny_models.save("llama", tmp_path))
    assert whole.bytes_of_rank == whole.weights_bytes
    divided = look(tmp_path, world_size=2)
    assert divided.num_shards == 2
    assert divided.bytes_of_rank == whole.bytes_of_rank // 2


def changed(folder: Path, name: str, **changes: Any) -> None:
    content = json.loads((folder / name).read_text())
    (folder / name).write_text(json.dumps({**content, **changes}))


def test_what_is_wrong_is_told_with_its_file(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path)
    changed(folder, "generation_config.json", eos_token_id="</s>")
    with pytest.raises(CheckpointBroken, match=r"eos_token_id '</s>': must be the id of a token"):
        look(folder)
    (folder / "generation_config.json").write_text("{")
    with pytest.raises(CheckpointBroken, match=r"generation_config\.json"):
        look(folder)
    (folder / "generation_config.json").unlink()
    changed(folder, "config.json", model_type="no-such-type")
    with pytest.raises(ModelRefused, match=r"config\.json.*no-such-type"):
        look(folder)
    changed(folder, "config.json", model_type="t5")
    with pytest.raises(ArchitectureUnfit, match="an encoder and a decoder"):
        look(folder)
    weights = folder / "model.safetensors"
    weights.write_bytes(weights.read_bytes()[:-8])
    with pytest.raises(CheckpointBroken, match=r"model\.safetensors: is truncated"):
        look(folder)


def test_a_kind_that_nobody_knows_is_named_with_the_nearest_one(tmp_path: Path) -> None:
    folder = tiny_models.save("llama", tmp_path)
    changed(folder, "config.json", model_type="lama")
    with pytest.raises(ModelRefused, match=r"model_type 'lama': .* 'llama'") as refused:
        look(folder)
    assert "pip install" not in str(refused.value)


def test_an_adapter_is_called_one(tmp_path: Path) -> None:
    adapter = {"base_model_name_or_path": "someone/model", "peft_type": "LORA"}
    (tmp_path / "adapter_config.json").write_text(json.dumps(adapter))
    with pytest.raises(
        CheckpointBroken, match=r"is an adapter for someone/model: serve that, with --lora-ad"
    ):
        look(tmp_path)


def of_names(folder: Path) -> None:
    """What `--dry-run` says of a folder's tensors."""
    stored = checkpoint.check(folder)
    empty = zoo.build_empty(
        zoo.read_config(folder, trust_remote_code=False), trust_remote_code=False
    )
    zoo.require_names(folder, empty, {name: each.shape for name, each in stored.items()})


@pytest.mark.parametrize("name", ["llama", "llama-tied", "gpt2", "mixtral", "gemma3", "opt"])
def test_a_whole_checkpoint_lacks_no_name(name: str, tmp_path: Path) -> None:
    of_names(tiny_models.save(name, tmp_path))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("llama", "lacks weights that the model needs (1): model.layers.0.mlp.down_proj.weight"),
        # An expert, of those that become one tensor.
        (
            "mixtral",
            "has weights of another shape than the model's (1): model.layers.0.mlp.experts",
        ),
    ],
)
def test_a_missing_tensor_is_told_without_weights_in_the_words_of_serve(
    name: str, words: str, tmp_path: Path
) -> None:
    folder = tiny_models.save(name, tmp_path)
    weights = load_file(folder / "model.safetensors")
    lost = sorted(weights)[3]
    save_file(
        {each: tensor for each, tensor in weights.items() if each != lost},
        folder / "model.safetensors",
        {"format": "pt"},
    )
    with pytest.raises(CheckpointBroken) as told:
        of_names(folder)
    with pytest.raises(CheckpointBroken) as served:
        load_model(ModelSettings(folder, torch.device("cpu"), dtype="float32"), World())
    assert str(served.value) == str(told.value)
    assert words in str(told.value)


CUDA = torch.device("cuda", 0)


@pytest.fixture
def two_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 2)


@pytest.fixture
def no_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)


@pytest.mark.usefixtures("two_gpus")
def test_a_rank_takes_the_gpu_of_its_number_on_this_machine() -> None:
    assert device_of("auto", 1, num_gpus=2) == torch.device("cuda", 1)
    assert device_of("cpu", 1, num_gpus=2) == torch.device("cpu")
    with pytest.raises(ConfigRefused, match="LOCAL_RANK 2 has no GPU: torch finds 2"):
        device_of("auto", 2, num_gpus=4)


@pytest.mark.usefixtures("no_gpu")
def test_without_gpus_auto_is_the_cpu() -> None:
    assert device_of("auto", 0, num_gpus=0) == torch.device("cpu")
    with pytest.raises(ConfigRefused, match=r"--device cuda: torch .* finds no CUDA device"):
        device_of("cuda", 0, num_gpus=0)


@pytest.mark.usefixtures("no_gpu")
def test_gpus_that_torch_does_not_find_are_no_reason_to_compute_on_the_cpu() -> None:
    with pytest.raises(ConfigRefused, match=r"the machine has 8 \(driver: .*--device cpu"):
        device_of("auto", 0, num_gpus=8)
    assert device_of("cpu", 0, num_gpus=8) == torch.device("cpu")


def config(dtype: torch.dtype) -> Any:
    text = SimpleNamespace(dtype=dtype)
    return SimpleNamespace(get_text_config=lambda: text)


@pytest.mark.parametrize(
    ("capability", "checkpoint", "expected"),
    [
        ((9, 0), torch.bfloat16, torch.bfloat16),
        ((9, 0), torch.float16, torch.float16),
        ((9, 0), torch.float32, torch.bfloat16),
        ((7, 5), torch.bfloat16, torch.float16),
    ],
)
def test_auto_is_a_dtype_that_the_gpu_computes_in(
    monkeypatch: pytest.MonkeyPatch,
    capability: tuple[int, int],
    checkpoint: torch.dtype,
    expected: torch.dtype,
) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    assert _resolve_dtype("auto", config(checkpoint), CUDA) is expected
    assert _resolve_dtype("float32", config(checkpoint), CUDA) is torch.float32


def test_bfloat16_is_refused_where_a_gpu_only_emulates_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    monkeypatch.setattr(torch.cuda, "get_device_name", lambda device: "Tesla T4")
    with pytest.raises(ModelRefused, match=r"Tesla T4 has compute capability 7\.5, .* try float16"):
        _resolve_dtype("bfloat16", config(torch.bfloat16), CUDA)


@pytest.fixture(scope="module")
def hybrid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("qwen3_5", tmp_path_factory.mktemp("qwen3_5"))


@pytest.fixture(scope="module")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tiny_models.save("llama", tmp_path_factory.mktemp("llama"))


def check(folder: Path, **settings: Any) -> Capacity:
    chosen: dict[str, Any] = {"dtype": "float32", "device": "cpu", **settings}
    return forecast(CheckConfig(model_id=str(folder), **chosen))


def test_it_is_what_the_loaded_model_takes(llama: Path) -> None:
    expected = load(llama, World())
    capacity = check(llama, max_batch_size=3)
    assert capacity.dtype == "float32"
    assert capacity.executor == "dense"
    assert capacity.max_total_len == expected.max_position_embeddings
    assert capacity.weights_bytes == 4 * capacity.num_parameters
    num_blocks = 3 * -(-capacity.max_total_len // 16)
    assert capacity.pool == Pool(num_blocks, 16, expected.bytes_per_block)


def test_slots_for_states_are_part_of_it(hybrid: Path) -> None:
    expected = load(hybrid, World())
    pool = check(hybrid, max_batch_size=3).pool
    assert pool is not None
    assert expected.state_bytes > 0
    assert (pool.num_states, pool.state_bytes) == (12, expected.state_bytes)
    limits = runner_of(expected, World()).warmup(32, 3, None, None)
    assert (limits.num_blocks, limits.num_states) == (pool.num_blocks, pool.num_states)


def test_the_pool_of_a_model_without_a_recipe_is_not_foretold(llama: Path) -> None:
    capacity = check(llama, attention="reference", world_size=2)
    assert capacity.executor == "zoo"
    assert capacity.pool is None
    assert capacity.weights_bytes == 2 * capacity.num_parameters
    assert "on each of 2 shards" in str(capacity)


def test_requests_that_neither_model_nor_pool_holds_are_refused(llama: Path) -> None:
    with pytest.raises(ConfigRefused, match=r"--max-total-tokens 9999: must be at most \d+, for"):
        check(llama, max_total_tokens=9999)
    with pytest.raises(ConfigRefused, match="--max-input-tokens 32: must be at most 31"):
        check(llama, kv_blocks=2, max_input_tokens=32)


def test_heads_that_the_ranks_cannot_share_are_refused(llama: Path) -> None:
    with pytest.raises(ModelRefused, match="is no multiple of 3 shards"):
        check(llama, world_size=3)


def test_weights_and_a_pool_need_memory(llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    weights_bytes = check(llama).weights_bytes
    assert weights_bytes is not None
    for available, said in ((1000, "weights of"), (weights_bytes + 1000, "no memory is left")):
        monkeypatch.setattr(memory, "available_bytes", lambda _, free=available: free)
        with pytest.raises(OutOfMemory, match=said):
            check(llama)


def test_adapters_have_their_memory_before_the_pool(
    llama: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = load(llama, World(), max_loras=1)
    assert model.adapter_bytes > 0
    weights_bytes = check(llama).weights_bytes
    assert weights_bytes is not None
    for of_adapters, max_loras in ((0, 0), (model.adapter_bytes, 1), (3 * model.adapter_bytes, 3)):
        # The pool has a quarter of it: 7 blocks, and the one of padding.
        available = weights_bytes + of_adapters + 4 * 8 * model.bytes_per_block
        monkeypatch.setattr(memory, "available_bytes", lambda _, free=available: free)
        pool = check(llama, max_loras=max_loras).pool
        assert pool is not None
        assert pool.num_blocks == 7, max_loras


def test_adapters_of_the_start_are_read(llama: Path, tmp_path: Path) -> None:
    shapes = {"model.layers.0.self_attn.q_proj": (64, 64)}
    fit = str(lora_folders.save(tmp_path / "fit", shapes))
    other = str(lora_folders.save(tmp_path / "other", shapes, use_dora=True))
    check(llama, max_loras=2, lora_adapters=(("a", fit), ("b", fit)))
    for adapters, reason in (
        ((("a", fit), ("b", other)), r"--lora-adapters b=.*: use_dora is True"),
        ((("a", fit), ("b", fit), ("c", fit)), r"--lora-adapters c=.*: --max-loras is 2"),
    ):
        with pytest.raises(ModelRefused, match=reason):
            check(llama, max_loras=2, lora_adapters=adapters)


def test_a_vocabulary_that_masks_cannot_read_is_told(
    llama: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    folder = tmp_path / "model"
    shutil.copytree(llama, folder)
    save_byte_tokenizer(folder)  # of more tokens than the model has
    check(folder)
    assert "constraints and tools cannot be served: " in caplog.text
    caplog.clear()
    check(Path("models/demo").absolute())
    assert "constraints" not in caplog.text


def test_it_is_one_sentence() -> None:
    pool = Pool(num_blocks=2560, block_size=16, bytes_per_block=2**20)
    capacity = Capacity(8_030_000_000, "bfloat16", "dense", 1, 8192, 16 * 2**30, pool)
    assert str(capacity) == (
        "8.03 B parameters in bfloat16 by dense; 16.00 GiB of weights and a KV pool of 2.50 GiB "
        "(2560 blocks of 16 tokens); requests of up to 8192 tokens, 5 at once"
    )


def with_mixer(recipe: Recipe, mixer: Mixer) -> Recipe:
    return replace(recipe, layers=(replace(recipe.layers[0], mixer=mixer),))


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2", "phi-qk", "gpt_oss"])
def test_such_recipes_are_served(family: str) -> None:
    assert unfit_reason(decoder(family).recipe, torch.bfloat16) is None


def test_the_reason_of_a_refusal_names_what_is_not_served() -> None:
    recipe = decoder("llama").recipe
    attention = recipe.layers[0].attention
    assert unfit_reason(recipe, torch.float16) is not None
    assert (
        unfit_reason(with_mixer(recipe, replace(attention, head_dim=40)), torch.float32)
        == "layer 0: head_dim 40 is not a multiple of 16"
    )
    unlike = replace(attention, key=replace(attention.key, rope=None))
    assert (
        unfit_reason(with_mixer(recipe, unlike), torch.float32)
        == "layer 0: queries and keys are rotated in different ways"
    )


@pytest.mark.parametrize(
    ("family", "changes", "reason"),
    [
        (
            "qwen3_5",
            {"value_dim": 24},
            "value_dim 24 of its gated delta rule is not a multiple of 16",
        ),
        ("qwen3_5", {"num_key_heads": 3}, "3 key heads do not divide 8 heads"),
        ("qwen3_5", {"conv": Conv("", None, 9)}, "its convolution reads 9 tokens, more than 8"),
        (
            "bamba",
            {"state_size": 20},
            "state_size 20 of its selective state space is not a multiple of 16",
        ),
        ("bamba", {"num_groups": 3}, "3 groups do not divide 16 heads"),
    ],
)
def test_a_recurrence_of_odd_sizes_is_refused_by_name(
    family: str, changes: dict[str, Any], reason: str
) -> None:
    recipe = decoder(family).recipe
    assert unfit_reason(recipe, torch.bfloat16) is None
    mixer = recipe.layers[0].mixer
    assert isinstance(mixer, Delta | Mamba2)
    assert unfit_reason(with_mixer(recipe, replace(mixer, **changes)), torch.bfloat16) == (
        f"layer 0: {reason}"
    )


def test_a_state_space_is_refused_on_cuda() -> None:
    reason = "layer 0: its selective state space is computed on a CPU alone"
    assert unfit_reason_on_cuda(decoder("bamba").recipe, ((0,),) * 6, 1) == reason


def test_layers_without_an_mlp_and_experts_without_a_gate_are_refused_on_cuda() -> None:
    first, *_ = decoder("mixtral").recipe.layers
    assert isinstance(first.mlp, Moe)
    for mlp, reason in (
        (None, "layer 0: it has no MLP, which is computed on a CPU alone"),
        (
            replace(first.mlp, layout="plain"),
            "layer 0: its experts have no gate, which is computed on a CPU alone",
        ),
    ):
        recipe = replace(decoder("mixtral").recipe, layers=(replace(first, mlp=mlp),))
        assert unfit_reason(recipe, torch.bfloat16) is None
        assert unfit_reason_on_cuda(recipe, ((0,),), 1) == reason


def test_a_recipe_of_states_alone_is_refused() -> None:
    recipe = decoder("qwen3_5").recipe
    alone = replace(recipe, layers=recipe.layers[:2])
    for reason in (
        unfit_reason(alone, torch.bfloat16),
        unfit_reason_on_cuda(alone, ((0,),) * 2, 1),
    ):
        assert reason is not None
        assert "none of its layers attends" in reason
