"""Models of the shapes of served ones, with random weights made on the device, and their steps."""

import gc
import statistics
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from transformers import LlamaConfig, Qwen3_5TextConfig, Qwen3Config, Qwen3MoeConfig

from bench.gpu_check.rows import Sizes
from model_server import zoo
from model_server.adapter import LinearShapes
from model_server.engine.distributed import World
from model_server.engine.first_rank import StepInFlight
from model_server.engine.runner import Runner
from model_server.executor.dense_cuda import DenseCuda, build_dense_cuda
from model_server.executor.device_weights import Partition
from model_server.executor.executor import PagedModel
from model_server.loading import new_sampler
from model_server.masking.mask_scheduler import MaskScheduler
from model_server.recipe.proof import read_recipe
from model_server.recipe.recipe import Recipe
from model_server.step import StepOutput
from proto.contract import NewSequence, OutputConstraint, SamplingParams, StopParams

_NUM_STEPS = 40
_NUM_WARM = 6
_MAX_POSITIONS = 16384

SHAPES: dict[str, Any] = {
    "Llama 3 8B": LlamaConfig(
        vocab_size=128_256,
        hidden_size=4096,
        intermediate_size=14_336,
        num_hidden_layers=32,
        num_attention_heads=32,
        num_key_value_heads=8,
        max_position_embeddings=_MAX_POSITIONS,
    ),
    "Qwen3 8B": Qwen3Config(
        vocab_size=151_936,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=36,
        num_attention_heads=32,
        num_key_value_heads=8,
        head_dim=128,
        max_position_embeddings=_MAX_POSITIONS,
    ),
    "Qwen3 0.6B": Qwen3Config(
        vocab_size=151_936,
        hidden_size=1024,
        intermediate_size=3072,
        num_hidden_layers=28,
        num_attention_heads=16,
        num_key_value_heads=8,
        head_dim=128,
        tie_word_embeddings=True,
        max_position_embeddings=_MAX_POSITIONS,
    ),
    # 48 layers of these weigh 61 GB.
    "Qwen3 30B-A3B, 24 layers": Qwen3MoeConfig(
        vocab_size=151_936,
        hidden_size=2048,
        intermediate_size=6144,
        moe_intermediate_size=768,
        num_experts=128,
        num_experts_per_tok=8,
        norm_topk_prob=True,
        num_hidden_layers=24,
        num_attention_heads=32,
        num_key_value_heads=4,
        head_dim=128,  # type: ignore[call-arg]
        max_position_embeddings=_MAX_POSITIONS,
    ),
    # Three layers in four have a gated delta rule.
    "Qwen3.5 9B": Qwen3_5TextConfig(
        vocab_size=248_320,
        hidden_size=4096,
        intermediate_size=12_288,
        num_hidden_layers=32,
        num_attention_heads=16,
        num_key_value_heads=4,
        head_dim=256,
        linear_num_key_heads=16,
        linear_num_value_heads=32,
        linear_key_head_dim=128,
        linear_value_head_dim=128,
        max_position_embeddings=_MAX_POSITIONS,
    ),
}
_TINY = {
    "vocab_size": 4096,
    "hidden_size": 128,
    "intermediate_size": 256,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 32,
    "max_position_embeddings": 512,
}

_TINY_MORE: dict[type, dict[str, int]] = {
    Qwen3MoeConfig: {"moe_intermediate_size": 64, "num_experts": 8, "num_experts_per_tok": 2},
    Qwen3_5TextConfig: {
        "full_attention_interval": 2,
        "linear_num_key_heads": 2,
        "linear_num_value_heads": 4,
        "linear_key_head_dim": 32,
        "linear_value_head_dim": 32,
    },
}


def config_of(shape: str, sizes: Sizes) -> Any:
    """The configuration of a shape; in a rehearsal a tiny one of its family."""
    config = SHAPES[shape]
    if not sizes.is_rehearsal:
        return config
    return type(config)(**_TINY, **_TINY_MORE.get(type(config), {}))


def random_executor(config: Any, device: torch.device, max_loras: int = 0) -> DenseCuda:
    """An executor of random bfloat16 weights by its recipe, as loading makes it of a checkpoint."""
    recipe = read_recipe(config, trust_remote_code=False)
    empty = zoo.build_empty(config, trust_remote_code=False).module
    parameters = _random_parameters(empty, device)
    return build_dense_cuda(
        recipe,
        torch.bfloat16,
        device,
        Partition(),
        None,
        parameters,
        _tables(recipe, empty, config, device),
        max_loras=max_loras,
        release=parameters.__delitem__,
    )


def _random_parameters(empty: Any, device: torch.device) -> dict[str, Tensor]:
    made: dict[int, Tensor] = {}
    parameters = {}
    for name, parameter in empty.named_parameters(remove_duplicate=False):
        if id(parameter) not in made:
            weight = torch.empty(parameter.shape, dtype=torch.bfloat16, device=device)
            made[id(parameter)] = (
                weight.fill_(1.0)
                if weight.dim() == 1
                else weight.normal_(0, weight.shape[-1] ** -0.5)
            )
        parameters[name] = made[id(parameter)]
    return parameters


def _tables(
    recipe: Recipe, empty: Any, config: Any, device: torch.device
) -> list[tuple[Tensor, Tensor]]:
    positions = torch.arange(config.max_position_embeddings)
    tables = []
    for rotary in recipe.rotary:
        made = type(empty.get_submodule(rotary.module))(config)
        cos, sin = made(torch.empty(1), positions[None], *rotary.arguments)
        half = cos.shape[-1] // 2
        tables.append((cos[0, :, :half].to(device), sin[0, :, :half].to(device)))
    return tables


@dataclass(frozen=True, slots=True)
class Load:
    """A batch that decodes, and what its step has to reach."""

    batch_size: int
    context_len: int
    wanted_share: float | None = None
    wanted_tokens_per_s: float | None = None


@dataclass(frozen=True, slots=True, eq=False)
class Server:
    """A random model and its runner. `adaptable`: the layers that adapters may change."""

    config: Any
    model: PagedModel
    runner: Runner
    adaptable: LinearShapes

    def enter(
        self,
        load: Load,
        num_steps: int,
        constraint: OutputConstraint | None = None,
        adapter_id: int | None = None,
    ) -> None:
        """Enter a batch that decodes for so many steps; contexts are zeros, read as any others.

        A state stands behind tokens that are computed: prompts of such a model, one by one.
        """
        start_len = load.context_len - num_steps // 2
        self.runner.clear()
        block_size = self.model.block_size
        if self.model.state_bytes:
            num_new = num_steps + load.batch_size + 1
            for index in range(load.batch_size):
                one = new_sequence(index, start_len, start_len, num_new, block_size, constraint)
                self.runner.step([replace(one, state_ids=(2 * index, 2 * index + 1))])
            return
        new = [
            new_sequence(index, start_len, 1, num_steps + 1, block_size, constraint, adapter_id)
            for index in range(load.batch_size)
        ]
        self.runner.step(new)

    def decode(self, num_steps: int) -> list[float]:
        """The seconds of each of so many steps; each is sent before the last one is answered."""
        times_s = []
        step = self.launched()
        last_s = time.perf_counter()
        for _ in range(num_steps - 1):
            following = self.launched()
            self._require_no_error(self.runner.finish(step))
            times_s.append(time.perf_counter() - last_s)
            last_s = time.perf_counter()
            step = following
        self._require_no_error(self.runner.finish(step))
        return times_s

    def launched(self) -> StepInFlight:
        """The next decode step, which nobody has waited for."""
        step = self.runner.begin()
        self.runner.launch(step)
        return step

    @staticmethod
    def _require_no_error(output: StepOutput) -> None:
        for generation in output.generations:
            if generation.error is not None:
                raise RuntimeError(f"request {generation.request_id}: {generation.error}")

    def median_step_s(
        self,
        load: Load,
        constraint: OutputConstraint | None = None,
        adapter_id: int | None = None,
    ) -> float:
        """Of a batch's decode steps, after a few that do not count."""
        self.enter(load, _NUM_WARM + _NUM_STEPS, constraint, adapter_id)
        self.decode(_NUM_WARM)
        return statistics.median(self.decode(_NUM_STEPS))

    def floor_s(self, load: Load, bytes_per_s: float) -> float:
        """What reading weights and keys and values once takes, and states, which are written."""
        kv_bytes = self.model.bytes_per_block / self.model.block_size * load.context_len
        of_each = kv_bytes + 2 * self.model.state_bytes
        return (
            2 * num_read(self.config, load.batch_size) + load.batch_size * of_each
        ) / bytes_per_s


def prompt_ids(index: int, prompt_len: int) -> tuple[int, ...]:
    """The tokens of one of many prompts, which begin with different ones."""
    return tuple((index * 7 + i) % 1000 + 3 for i in range(prompt_len))


def new_sequence(
    index: int,
    prompt_len: int,
    chunk_len: int,
    num_new: int,
    block_size: int,
    constraint: OutputConstraint | None = None,
    adapter_id: int | None = None,
) -> NewSequence:
    """One of many that makes so many tokens; what is before the chunk counts as cached."""
    num_blocks = -(-(prompt_len + num_new + 1) // block_size)
    return NewSequence(
        request_id=index,
        token_ids=prompt_ids(index, prompt_len),
        prompt_len=prompt_len,
        cached_len=prompt_len - chunk_len,
        chunk_len=chunk_len,
        block_ids=tuple(range(index * num_blocks, (index + 1) * num_blocks)),
        sampling=SamplingParams(),
        stop=StopParams(max_new_tokens=num_new, ignore_eos=True),
        constraint=constraint,
        adapter_id=adapter_id,
    )


@contextmanager
def served(
    shape: str,
    sizes: Sizes,
    max_batch_size: int,
    guides: Callable[[PagedModel], MaskScheduler] | None = None,
    max_loras: int = 0,
) -> Iterator[Server]:
    """A random model, warmed up."""
    config = config_of(shape, sizes)
    executor = random_executor(config, sizes.device, max_loras)
    model = PagedModel(
        executor,
        model_type=config.model_type,
        dtype=torch.bfloat16,
        device=sizes.device,
        vocab_size=config.vocab_size,
        max_position_embeddings=config.max_position_embeddings,
        window_len=None,
        eos_token_ids=(),
        max_loras=max_loras,
    )
    runner = Runner(
        model,
        new_sampler(model, max_batch_size),
        World(),
        guides=None if guides is None else guides(model),
        runs_ahead=True,
    )
    max_len = 512 if sizes.is_rehearsal else 8192 + 128
    num_blocks = max(max_batch_size * 1152, 8 * max_len) // model.block_size
    runner.warmup(128 if sizes.is_rehearsal else 8192, max_batch_size, max_len, num_blocks)
    adapters = executor.adapters
    yield Server(config, model, runner, {} if adapters is None else adapters.adaptable)
    runner.clear()


def num_read(config: Any, num_tokens: int) -> int:
    """Parameters of layers and head that so many tokens read; experts are chosen evenly."""
    hidden_size = config.hidden_size
    num_heads = config.num_attention_heads + config.num_key_value_heads
    attention = 2 * hidden_size * config.head_dim * num_heads
    rule = 0
    if isinstance(config, Qwen3_5TextConfig):
        attention += hidden_size * config.head_dim * config.num_attention_heads
        keys_len = config.linear_num_key_heads * config.linear_key_head_dim
        values_len = config.linear_num_value_heads * config.linear_value_head_dim
        rule = hidden_size * (2 * keys_len + 3 * values_len + 2 * config.linear_num_value_heads)
    inner_len = config.intermediate_size
    if isinstance(config, Qwen3MoeConfig):
        unread = (1 - config.num_experts_per_tok / config.num_experts) ** num_tokens
        inner_len = config.moe_intermediate_size * config.num_experts * (1 - unread)
    num_attending = num_attention_layers(config)
    num_layers = config.num_hidden_layers
    mixers = num_attending * attention + (num_layers - num_attending) * rule
    mlps = num_layers * 3 * hidden_size * inner_len
    return int(mixers + mlps + config.vocab_size * hidden_size)


def num_attention_layers(config: Any) -> int:
    """Layers that attend; the others have a gated delta rule."""
    kinds = getattr(config, "layer_types", None) or ()
    return int(config.num_hidden_layers) - list(kinds).count("linear_attention")


def free_memory(sizes: Sizes) -> None:
    """Give back what the models before left on the device."""
    gc.collect()
    if sizes.device.type == "cuda":
        torch.cuda.empty_cache()
