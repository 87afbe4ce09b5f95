"""One forward pass, recorded: what every module read and gave, and how each layer mixed its tokens.

Of transformers it knows the attention function, the functions that it exchanges for kernels of
other packages, the layer index and the keyword arguments that layers are handed, nothing of any
model.

Numbers of a formula are measured in the small model and found again in the real model's config: a
scalar is 1, or a number of the config, its inverse or its root. The small config makes the ones
that it changes unlike all others, so that a number says where it comes from.
"""

import math
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from contextvars import ContextVar
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from transformers import AttentionInterface

from model_server.recipe.recipe import Unreadable
from model_server.recipe.small import NO_SCALARS, numbers

NUM_TOKENS = 19  # unlike the sizes of a small model


_TOLERANCE = 3e-5  # of the root mean square, in float32


_RECORDED = "tandem_recorded"


_EAGER = "eager"


# Arguments of an attention function that change nothing in what a causal decoder attends to, and
# those that a recipe has.
_HARMLESS = frozenset(
    "dropout position_ids use_cache output_attentions output_hidden_states output_router_logits"
    " is_causal cache_position logits_to_keep".split()
)


_KNOWN = _HARMLESS | {"scaling", "sliding_window", "softcap", "s_aux"}


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of a module. Tensors are copies: a module may change what it was handed."""

    name: str
    module: nn.Module
    source: Tensor | None  # the hidden states that it read
    output: Any  # a tensor, or a tuple
    arguments: tuple[Any, ...]  # as they were handed over, by place and by name
    result: Any  # the output itself, to be known again


@dataclass(frozen=True, slots=True, eq=False)
class Attended:
    """What a layer asked of its attention function; tensors are [num_tokens, heads * dim]."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    answer: Tensor
    num_heads: int
    num_kv_heads: int
    head_dim: int
    scale: float
    window_len: int | None
    chunk_len: int | None
    softcap: float | None
    sinks: Tensor | None


@dataclass(frozen=True, slots=True, eq=False)
class Convolved:
    """A layer's call of its causal convolution."""

    module: nn.Module
    source: Tensor  # [num_tokens, channels]
    weight: Tensor  # [channels, num_taps]
    bias: Tensor | None
    activation: str | None
    output: Tensor  # as source


@dataclass(frozen=True, slots=True, eq=False)
class Ruled:
    """What a layer asked of its gated delta rule; tensors are [num_tokens, heads * dim]."""

    module: nn.Module
    query: Tensor
    key: Tensor
    value: Tensor
    decay: Tensor  # [num_tokens, num_heads], a logarithm
    beta: Tensor  # as decay
    answer: Tensor
    num_key_heads: int
    num_heads: int
    convolved: Convolved


@dataclass(frozen=True, slots=True, eq=False)
class Scanned:
    """What a layer asked of its selective scan; tensors are [num_tokens, heads * dim]."""

    module: nn.Module
    value: Tensor
    b: Tensor
    c: Tensor
    dt: Tensor  # [num_tokens, num_heads], before its bias
    a: Tensor  # [num_heads], the logarithm of what is kept over a dt of one
    dt_bias: Tensor  # as a
    skip: Tensor  # as a
    dt_limits: tuple[float, float]
    answer: Tensor
    num_groups: int
    num_heads: int
    convolved: Convolved


Mixed: TypeAlias = Attended | Ruled | Scanned | Convolved


@dataclass(frozen=True, slots=True, eq=False)
class Recording:
    calls: tuple[Call, ...]  # in the order of their ends
    mixed: Mapping[int, Mixed]  # by layer
    logits: Tensor


class _Watch:
    """What the layers of one pass have asked for so far, by layer."""

    def __init__(self) -> None:
        self.mixed: dict[int, Mixed] = {}
        self.convolved: dict[int, Convolved] = {}
        self._inside: list[nn.Module] = []  # modules of a layer that now run

    def enter(self, module: nn.Module, _: Any) -> None:
        self._inside.append(module)

    def leave(self, *_: Any) -> None:
        self._inside.pop()

    def add(self, index: int, mixed: Mixed) -> None:
        if index in self.mixed:
            raise Unreadable(f"layer {index} mixes its tokens more than once")
        self.mixed[index] = mixed

    def layer(self) -> tuple[int, nn.Module]:
        """The innermost module that knows its layer. Raises Unreadable."""
        if not self._inside:
            raise Unreadable("its mixers of tokens do not say which layer they are")
        module = self._inside[-1]
        index: Any = module.layer_idx
        return index, module


_watch: ContextVar[_Watch] = ContextVar("watch")


def record(model: Any, token_ids: Tensor) -> Recording:
    """One pass over token_ids [NUM_TOKENS]. Raises Unreadable for attention of another kind."""
    names = {module: name for name, module in model.named_modules()}
    calls: list[Call] = []
    sources: list[Tensor | None] = []

    def before(_: nn.Module, args: Any, kwargs: Any) -> None:
        tensors = [each for each in (*args, *kwargs.values()) if isinstance(each, Tensor)]
        source = next((each for each in tensors if each.is_floating_point()), None)
        sources.append(_copy(kwargs.get("hidden_states", source)))

    def after(module: nn.Module, args: Any, kwargs: Any, output: Any) -> None:
        copied = tuple(map(_copy, output)) if isinstance(output, tuple) else _copy(output)
        arguments = (*args, *kwargs.values())
        calls.append(Call(names[module], module, sources.pop(), copied, arguments, output))

    handles = [
        handle
        for module in names
        for handle in (
            module.register_forward_pre_hook(before, with_kwargs=True),
            module.register_forward_hook(after, with_kwargs=True),
        )
    ]
    try:
        mixed, logits = mixers_of(model, token_ids)
    finally:
        for handle in handles:
            handle.remove()
    return Recording(tuple(calls), mixed, logits)


def mixers_of(model: Any, token_ids: Tensor) -> tuple[Mapping[int, Mixed], Tensor]:
    """How every layer mixes its tokens, and the logits; a model on `meta` will do."""
    watch = _Watch()
    token = _watch.set(watch)
    try:
        with _implementation(model, _RECORDED), _recorded_kernels(model, watch):
            logits = model(token_ids[None], use_cache=False).logits[0]
    finally:
        _watch.reset(token)
    mixed = {**watch.convolved, **watch.mixed}
    if not mixed:
        raise Unreadable(
            "none of its layers attends, convolves, scans or applies a gated delta rule through a"
            " replaceable function"
        )
    return mixed, logits


def native_logits(model: Any, token_ids: Tensor, start: int = 0) -> Tensor:
    """[num_tokens, vocab_size] of one sequence, by the model's own attention.

    start: position of its first token; there is nothing before it
    """
    positions = torch.arange(start, start + token_ids.shape[0], device=token_ids.device)
    with _implementation(model, _EAGER):
        logits: Tensor = model(
            token_ids[None], position_ids=positions[None], use_cache=False
        ).logits[0]
    return logits


@contextmanager
def _implementation(model: Any, name: str) -> Iterator[None]:
    before = model.config._attn_implementation
    model.config._attn_implementation = name
    try:
        yield
    finally:
        model.config._attn_implementation = before


def _record_attention(
    module: Any, query: Tensor, key: Tensor, value: Tensor, mask: Any = None, **options: Any
) -> tuple[Tensor, None]:
    """query, key, value: [1, heads, tokens, dim]"""
    index = getattr(module, "layer_idx", None)
    unknown = [
        name
        for name, given in options.items()
        if name not in _KNOWN and given is not None and given is not False
    ]
    if mask is not None:
        raise Unreadable(f"layer {index} brings an attention mask of its own")
    if False in (getattr(module, "is_causal", True), options.get("is_causal", True)):
        raise Unreadable(f"layer {index} looks at later tokens")
    if unknown or not isinstance(index, int):
        raise Unreadable(f"layer {index} attends in an unknown way: {', '.join(unknown)}")
    if not all(isinstance(each, Tensor) and each.dim() == 4 for each in (query, key, value)):
        raise Unreadable(f"layer {index} attends in an unknown way")
    if query.shape[-1] != key.shape[-1] or query.shape[-1] != value.shape[-1]:
        raise Unreadable(f"layer {index} has keys and values of unlike sizes")
    # Any causal answer will do: only who reads it matters.
    answer = value.cumsum(2).repeat_interleave(query.shape[1] // key.shape[1], 1)
    answer = answer.transpose(1, 2).contiguous()
    scale = options.get("scaling")
    attended = Attended(
        module,
        query=rows(query),
        key=rows(key),
        value=rows(value),
        answer=rows(answer),
        num_heads=query.shape[1],
        num_kv_heads=key.shape[1],
        head_dim=query.shape[3],
        scale=query.shape[3] ** -0.5 if scale is None else float(scale),
        window_len=options.get("sliding_window"),
        chunk_len=_chunk_len(module, index),
        softcap=options.get("softcap"),
        sinks=options.get("s_aux"),
    )
    _watch.get().add(index, attended)
    return answer, None


AttentionInterface.register(_RECORDED, _record_attention)


def _chunk_len(module: Any, index: int) -> int | None:
    """An attention function is not handed it: the mask has it."""
    kinds = getattr(module.config, "layer_types", None) or ()
    is_chunked = index < len(kinds) and kinds[index] == "chunked_attention"
    return module.config.attention_chunk_size if is_chunked else None


# Arguments of a rule or scan beside its numbers that say how it is computed, not what.
_HOW = frozenset(("chunk_size", "use_qk_l2norm_in_kernel"))


@contextmanager
def _recorded_kernels(model: Any, watch: _Watch) -> Iterator[None]:
    """While it lasts, the functions that packages of kernels have are recorded."""
    with ExitStack() as stack:
        for part in model.modules():
            if isinstance(getattr(part, "layer_idx", None), int):
                stack.callback(part.register_forward_pre_hook(watch.enter).remove)
                stack.callback(part.register_forward_hook(watch.leave).remove)
        for code in {sys.modules[type(part).__module__] for part in model.modules()}:
            for name, function in list(vars(code).items()):
                kind = name.removeprefix("torch_").removeprefix("fused_")
                if callable(function) and kind in _RECORDERS:
                    setattr(code, name, partial(_RECORDERS[kind], watch, function))
                    stack.callback(setattr, code, name, function)
        yield


def _record_convolution(
    watch: _Watch,
    function: Callable[..., Tensor],
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None = None,
    activation: str | None = None,
    **options: Any,
) -> Tensor:
    """x: [1, channels, tokens]"""
    index, module = watch.layer()
    if index in watch.convolved:
        raise Unreadable(f"layer {index} has several convolutions")
    output = function(x, weight, bias, activation=activation, **options)
    watch.convolved[index] = Convolved(
        module, _copy(x[0].T), weight, bias, activation, _copy(output[0].T)
    )
    return output


def _record_rule(
    watch: _Watch,
    _: Callable[..., Any],
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    g: Tensor,
    beta: Tensor,
    **options: Any,
) -> tuple[Tensor, None]:
    """query, key, value: [1, tokens, heads, dim]; g, beta: [1, tokens, heads]"""
    index, module = watch.layer()
    if unknown := _unknown(options):
        raise Unreadable(f"layer {index} has an unknown delta rule: {', '.join(unknown)}")
    if options.get("use_qk_l2norm_in_kernel") is not True:
        raise Unreadable(f"layer {index} has queries and keys that are not of length one")
    if index not in watch.convolved:
        raise Unreadable(f"layer {index} has a delta rule without a convolution")
    # Any answer will do, as in attention.
    answer = value.cumsum(1)
    ruled = Ruled(
        module,
        query=rows(query),
        key=rows(key),
        value=rows(value),
        decay=rows(g),
        beta=rows(beta),
        answer=rows(answer),
        num_key_heads=key.shape[2],
        num_heads=value.shape[2],
        convolved=watch.convolved[index],
    )
    watch.add(index, ruled)
    return answer, None


def _record_scan(
    watch: _Watch,
    _: Callable[..., Any],
    x: Tensor,
    dt: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    *,
    dt_bias: Tensor | None = None,
    dt_softplus: bool = False,
    dt_limit: tuple[float, float] = (0.0, math.inf),
    **options: Any,
) -> Tensor:
    """x: [1, tokens, heads, dim]; dt: [1, tokens, heads]; b, c: [1, tokens, groups, dim]"""
    index, module = watch.layer()
    skip = options.pop("D", None)
    if unknown := _unknown(options):
        raise Unreadable(f"layer {index} has an unknown selective scan: {', '.join(unknown)}")
    if skip is None or skip.dim() != 1 or dt_bias is None or not dt_softplus:
        raise Unreadable(f"layer {index} has a selective scan without D, dt_bias or softplus")
    if index not in watch.convolved:
        raise Unreadable(f"layer {index} has a selective scan without a convolution")
    # Any answer will do, as in attention.
    answer = x.cumsum(1)
    low, high = dt_limit
    scanned = Scanned(
        module,
        value=rows(x),
        b=rows(b),
        c=rows(c),
        dt=rows(dt),
        a=a,
        dt_bias=dt_bias,
        skip=skip,
        dt_limits=(float(low), float(high)),
        answer=rows(answer),
        num_groups=b.shape[2],
        num_heads=x.shape[2],
        convolved=watch.convolved[index],
    )
    watch.add(index, scanned)
    return answer


def _unknown(options: Mapping[str, Any]) -> list[str]:
    return [
        name
        for name, given in options.items()
        if name not in _HOW and given is not None and given is not False
    ]


# By the names that packages for Gated DeltaNet and Mamba give them; transformers' own have a prefix
# or a name of their own.
_RECORDERS: Mapping[str, Callable[..., Any]] = {
    "causal_conv1d_fn": _record_convolution,
    "chunk_gated_delta_rule": _record_rule,
    "recurrent_gated_delta_rule": _record_rule,
    "mamba_chunk_scan_combined": _record_scan,
    "mamba2_chunk_scan": _record_scan,
}


def _copy(value: Any) -> Any:
    return value.detach().clone() if isinstance(value, Tensor) else value


@contextmanager
def handed_to(module: nn.Module) -> Iterator[list[tuple[Any, ...]]]:
    """What the module is handed from now on, call by call, by place and by name."""
    calls: list[tuple[Any, ...]] = []
    handle = module.register_forward_pre_hook(
        lambda _, args, kwargs: calls.append((*args, *kwargs.values())), with_kwargs=True
    )
    try:
        yield calls
    finally:
        handle.remove()


def choice_of(arguments: Iterable[Any]) -> tuple[Tensor, Tensor]:
    """Each token's experts and their weights, of what a module of experts was handed."""
    tensors = [each for each in arguments if isinstance(each, Tensor)]
    chosen = next((each for each in tensors if not each.is_floating_point()), None)
    if chosen is None:
        raise Unreadable("which experts a token takes is not handed to its experts")
    weights = [each for each in tensors if each.is_floating_point() and each.shape == chosen.shape]
    if not weights:
        raise Unreadable("its experts are handed no weights")
    return chosen, weights[0]


def rows(tensor: Tensor | None) -> Tensor:
    """[NUM_TOKENS, all numbers of a token], whether heads come before or after tokens."""
    if tensor is None:
        raise Unreadable("a module reads no hidden states")
    if tensor.dim() == 4 and tensor.shape[1] != NUM_TOKENS:
        tensor = tensor.transpose(1, 2)
    return tensor.reshape(NUM_TOKENS, -1)


def same(first: Any, second: Any) -> bool:
    """Whether two tensors hold the same numbers of every token."""
    return _alike(first, second) and torch.equal(rows(first), rows(second))


def close(first: Any, second: Any, tolerance: float = _TOLERANCE) -> bool:
    """Whether they do but for rounding."""
    if not _alike(first, second):
        return False
    error = (rows(first) - rows(second)).abs().max()
    return bool(error <= tolerance * second.square().mean().sqrt())


def _alike(first: Any, second: Any) -> bool:
    return (
        isinstance(first, Tensor)
        and isinstance(second, Tensor)
        and first.numel() == second.numel()
        and first.numel() % NUM_TOKENS == 0
    )


_PRECISION = 1e-5  # of a scalar that is measured in float32


def scalars(config: Any) -> dict[tuple[str, str], float]:
    """Form and field -> the number, for every one that may be a scalar."""
    found: dict[tuple[str, str], float] = {}
    for name, value in numbers(config).items():
        if name not in NO_SCALARS and value > 0:
            found["itself", name] = float(value)
            found["inverse", name] = 1 / value
            found["root", name] = value**0.5
    return found


def named(measured: float, config: Any, what: str) -> float:
    """The number of the config that was measured. Raises Unreadable if there is none."""
    candidates = (1.0, *scalars(config).values())
    nearest = min(candidates, key=lambda candidate: abs(candidate - measured))
    if not abs(nearest - measured) <= _PRECISION * abs(measured):
        raise Unreadable(f"{what} is {measured:.6g}, and no number of the config says so")
    return nearest


def real(value: float, small: Any, config: Any, what: str) -> float:
    """What a scalar of the small config is in the real one. Raises Unreadable if that is unclear.

    A number that no field names is a constant of the class.
    """
    if value == 1:
        return value
    known = scalars(config)
    forms = [form for form, number in scalars(small).items() if number == value]
    values = {known.get(form) for form in forms} or {value}
    found = values.pop()
    if found is None or values:
        raise Unreadable(f"{what} is {value:.6g} in a narrow model, and its source is not clear")
    return found
