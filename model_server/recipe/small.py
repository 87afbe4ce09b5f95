"""A narrow model of a class with the depth of the real one, and random numbers in every weight.

Names of layers are those of the real model. No two widths are equal where one could be taken for
the other, and the numbers that may appear in a formula are unlike every other of the config: what
is measured in the small model is found again in the config, and so in the real one.
"""

import copy
import math
from collections.abc import Collection, Mapping
from itertools import count
from typing import Any

import torch
from torch import Tensor, nn

from model_server.recipe.recipe import Unreadable
from model_server.zoo import build_small

TOP_KS = ("num_experts_per_tok", "num_experts_per_token", "experts_per_token", "moe_k", "moe_topk")
_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
# Groups of experts: how many there are, how many of them a token chooses among.
NUM_GROUPS = "n_group"
TOP_GROUPS = "topk_group"
_GROUPS = 3
_GROUP_LEN = 4
_HEAD_DIM = 40  # and its multiples: every usual share of it that is rotated is even
# Heads and heads of keys, where several share one.
_NUM_HEADS = 6
_NUM_KV_HEADS = 3
_REACH = 8  # of windows and chunks
_SIZES = {
    "intermediate_size": 104,
    "ffn_dim": 104,
    "moe_intermediate_size": 56,
    "shared_expert_intermediate_size": 72,
    "moe_shared_expert_intermediate_size": 72,
    "shared_intermediate_size": 72,
    "vocab_size": 136,
    "sliding_window": _REACH,
    "attention_chunk_size": _REACH,
    "pad_token_id": 0,
    "bos_token_id": 0,
    "eos_token_id": 0,
    **dict.fromkeys(TOP_KS, 3),
    **dict.fromkeys(_EXPERT_COUNTS, 7),
}
# Of delta rules, whatever the real ones are: heads of keys and of values, keys and values, and
# queries and heads of attention are unlike.
_DELTA_SIZES = {
    "linear_key_head_dim": 20,
    "linear_value_head_dim": 28,
    "linear_num_key_heads": 2,
    "linear_num_value_heads": 6,
}
# Of selective state spaces, whatever the real ones are; the width of a head follows from them. A
# prompt passes the ends of chunks.
_MAMBA_HEADS = 8
_MAMBA_EXPANSION = 2
_MAMBA_SIZES = {
    **dict.fromkeys(("mamba_n_heads", "mamba_num_heads"), _MAMBA_HEADS),
    **dict.fromkeys(("mamba_expand", "expand"), _MAMBA_EXPANSION),
    **dict.fromkeys(("mamba_n_groups", "n_groups"), 2),
    **dict.fromkeys(("mamba_d_state", "ssm_state_size"), 12),
    **dict.fromkeys(("mamba_chunk_size", "chunk_size"), _REACH),
}
_MAMBA_LENS = ("mamba_d_ssm",)
_MAMBA_HEAD_DIMS = ("mamba_d_head", "mamba_head_dim")
_MAMBA_LIMITS = (0.3, 2.0)  # of time steps, such that many feel them
_LOUDNESS = 8.0
_SHARE_OF_LOUD = 0.06
# What no formula of a scalar knows: counts that many numbers equal by chance.
NO_SCALARS = frozenset(
    (
        *_SIZES,
        *_DELTA_SIZES,
        *_MAMBA_SIZES,
        *_MAMBA_LENS,
        *_MAMBA_HEAD_DIMS,
        NUM_GROUPS,
        TOP_GROUPS,
        "num_attention_heads",
        "num_key_value_heads",
        "head_dim",
    )
)


def small_model(
    config: Any, *, trust_remote_code: bool, reaches: Collection[tuple[str, ...]] = ()
) -> Any:
    """The narrow model, float32 on the CPU, randomised. Raises Unreadable if none can be built.

    reaches: paths of further numbers that are to be as short as its windows
    """
    try:
        small = narrow(config)
        for *holders, name in reaches:
            content = vars(small.get_text_config())
            for holder in holders:
                content = content[holder]
            content[name] = _REACH
        model = build_small(small, trust_remote_code=trust_remote_code).module
    # A class fails in whatever way it likes.
    except Exception as error:
        raise Unreadable(
            f"no narrow model of it can be built: {type(error).__name__}: {error}"
        ) from error
    randomise(model, seed=0, loudness=_LOUDNESS)
    return model


def narrow(config: Any) -> Any:
    """A copy of the config whose model is as deep, and a few dozen numbers wide."""
    small = copy.deepcopy(config)
    text = small.get_text_config()
    if getattr(small, "quantization_config", None) is not None:
        del small.quantization_config
    taken = {abs(value) for value in numbers(text).values()}
    _narrow_heads(text, taken)
    _narrow_sizes(text, taken)
    for name in small.sub_configs:
        # What sees and hears is not read.
        part = getattr(small, name, None)
        if part is not None and part is not text and hasattr(part, "num_hidden_layers"):
            part.num_hidden_layers = 1
    return small


def numbers(config: Any) -> dict[str, float]:
    """The numbers that a config names."""
    return {
        name: value
        for name, value in vars(config).items()
        if isinstance(value, int | float) and not isinstance(value, bool)
    }


def _narrow_sizes(text: Any, taken: set[float]) -> None:
    for name, size in _SIZES.items():
        value = getattr(text, name, None)
        if isinstance(value, list):
            setattr(text, name, [size] * len(value))
        elif value:
            setattr(text, name, min(size, value))
    for name, size in {**_DELTA_SIZES, **_MAMBA_SIZES}.items():
        if getattr(text, name, None):
            setattr(text, name, size)
    _narrow_scans(text)
    _narrow_groups(text)
    for name, value in numbers(text).items():
        if "eps" in name.split("_") or "epsilon" in name:
            setattr(text, name, _unlike(taken, 0.03, 0.002))  # so large that a wrong one shows
        elif "softcap" in name and value:
            setattr(text, name, _unlike(taken, 4.3, 0.4))  # so small that it is felt


def _narrow_scans(text: Any) -> None:
    inner_len = _MAMBA_EXPANSION * text.hidden_size
    for names, width in ((_MAMBA_LENS, inner_len), (_MAMBA_HEAD_DIMS, inner_len // _MAMBA_HEADS)):
        for name in names:
            if getattr(text, name, None):
                setattr(text, name, width)
    low, high = _MAMBA_LIMITS
    if limits := getattr(text, "time_step_limit", None):
        limits = (low if limits[0] > 0 else 0.0, high if limits[1] < math.inf else math.inf)
        text.time_step_limit = limits
    if getattr(text, "time_step_min", None):
        text.time_step_min = low


def _narrow_groups(text: Any) -> None:
    num_groups = getattr(text, NUM_GROUPS, None) or 1
    if num_groups == 1:
        return
    has_choice = getattr(text, TOP_GROUPS) < num_groups  # else groups change nothing
    setattr(text, NUM_GROUPS, _GROUPS if has_choice else 1)
    setattr(text, TOP_GROUPS, _GROUPS - 1 if has_choice else 1)
    for name in _EXPERT_COUNTS if has_choice else ():
        if getattr(text, name, None):
            setattr(text, name, _GROUPS * _GROUP_LEN)


def _narrow_heads(text: Any, taken: set[float]) -> None:
    num_heads = text.num_attention_heads
    num_kv_heads = getattr(text, "num_key_value_heads", None)
    small_heads = _NUM_HEADS
    small_kv_heads = _NUM_KV_HEADS
    if num_kv_heads in (None, 1, num_heads):
        small_heads = 5
        small_kv_heads = 1 if num_kv_heads == 1 < num_heads else small_heads
    own_dim = getattr(text, "head_dim", None)
    real_dim = own_dim or text.hidden_size // num_heads
    # Lists of factors are as long as half a head.
    has_lists = _has_lists(getattr(text, "rope_parameters", None))
    head_dim = real_dim if has_lists else int(_unlike(taken, _HEAD_DIM, _HEAD_DIM))
    hidden_size = small_heads * head_dim
    if own_dim is not None:
        text.head_dim = head_dim
    if text.hidden_size != num_heads * real_dim or (has_lists and own_dim is not None):
        hidden_size = int(_unlike(taken, 16 * small_heads, 4 * small_heads))
    text.hidden_size = hidden_size
    text.num_attention_heads = small_heads
    if num_kv_heads is not None:
        text.num_key_value_heads = small_kv_heads


def _has_lists(value: Any) -> bool:
    if isinstance(value, Mapping):
        return any(map(_has_lists, value.values()))
    return isinstance(value, list)


def _unlike(taken: set[float], first: float, step: float) -> float:
    """The first number that is not taken, and no square; it is taken from now on."""
    chosen = next(n for n in count(first, step) if n not in taken and n**0.5 % 1)
    taken.add(chosen)
    return chosen


def randomise(model: Any, seed: int, loudness: float = 1.0) -> None:
    """Give a random value to every parameter and to every buffer that a checkpoint holds.

    By default norms are ones, biases and router corrections zeros, and attention is almost uniform:
    a recipe that forgets them would pass. Here scores are spread enough to feel softcaps. Some rows
    of matrices are louder than the others, so that a clamp is felt; rounding grows as fast.
    """
    generator = torch.Generator().manual_seed(seed)
    for buffer in saved_buffers(model).values():
        buffer.copy_(torch.randn(buffer.shape, generator=generator) * 0.3)
    embedding = model.get_input_embeddings().weight
    for name, parameter in model.named_parameters():
        noise = torch.randn(parameter.shape, generator=generator)
        if parameter is embedding:
            noise = noise * 0.2
        elif parameter.dim() == 1 or "norm" in name:
            # Around one where it was, so that nothing vanishes; what a state forgets was far off.
            mean = round(float(parameter.detach().mean()))
            noise = noise * 0.3 + (mean if mean in (0, 1) else 0)
        else:
            is_conv = parameter.dim() == 3 and parameter.shape[1] == 1  # a row per channel
            outputs = (parameter.shape[0], 1, 1) if is_conv else (parameter.shape[-2], 1)
            is_loud = torch.rand(outputs, generator=generator) < _SHARE_OF_LOUD
            noise = noise * torch.where(is_loud, loudness, 1.0)
            is_stack = parameter.dim() == 3 and not is_conv
            noise = noise * 1.5 / parameter.shape[-2 if is_stack else -1] ** 0.5
        parameter.data.copy_(noise)


def saved_buffers(model: nn.Module) -> dict[str, Tensor]:
    """Buffers of a checkpoint that hold no integers."""
    saved = model.state_dict(keep_vars=True)
    return {
        name: buffer
        for name, buffer in model.named_buffers()
        if name in saved and buffer.is_floating_point()
    }


def parameters_of(model: nn.Module) -> dict[str, Tensor]:
    """What a checkpoint holds, by name; tied parameters by each of their names."""
    parameters = {n: p.detach() for n, p in model.named_parameters(remove_duplicate=False)}
    return parameters | saved_buffers(model)
