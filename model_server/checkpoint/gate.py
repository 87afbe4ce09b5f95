"""The load-time gate: which models may be served on paged, flattened batches.

    static rule  ->  self-test on a small model of the same class  ->  probe of the loaded model

An architecture that does not fit gives no exception but nonsense, so nothing is taken on trust: the
self-test runs the class's own attention over each sequence alone, and ours over two sequences in
chunks and mixed steps, and compares the logits. Along the way the probe learns what each layer
stores and how it attends.

The small model keeps what decides how a model attends: the kinds of its layers, head sizes (rotary
factors come in lists of that length), whether heads share keys. Widths, counts and the vocabulary
are cut, so that it runs within a fraction of a second; configs are known by the spellings that they
share.

It knows neither requests nor the pool of a running shard.
"""

import copy
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from model_server.attention.base import AttentionBackend, LayerCache, LayerGeometry, LayerOptions
from model_server.attention.reference import ReferenceAttention
from model_server.errors import ArchitectureUnfit
from model_server.executor.zoo_executor import LayerPlan
from model_server.mixers import Memory, MixerCache, StatePool, find_mixers, split_mixers
from model_server.step import SequenceStep, StateStep, StepInputs
from model_server.zoo import HfModel, ModelFacts, quiet

NUM_TOKENS = 128  # of the small vocabulary


WINDOW_LEN = 8  # of sliding windows and of attention chunks


_PAGEABLE = frozenset(("full_attention", "sliding_attention", "chunked_attention"))


# Layers with a state of a fixed size, beside keys and values or in their place, or with neither.
_MIXED = frozenset(("linear_attention", "conv", "hybrid", "mlp", "moe"))


# Arguments of an attention function that change nothing in what a causal decoder attends to.
_HARMLESS = frozenset(
    (
        "dropout",
        "position_ids",
        "use_cache",
        "output_attentions",
        "output_hidden_states",
        "output_router_logits",
        "is_causal",
        "logits_to_keep",
        "cache_position",
    )
)


# Root mean square of the difference of logits over their spread. In the small model float32 stays
# below 2e-5, a softcap left out gives 7e-4, a window left out 0.2. The loaded model is compared in
# its own dtype, to find what size, sharding or weights may have changed.
_MAX_SMALL_ERROR = 1e-4


_MAX_ERROR = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.15}


# Tokens that each of two sequences computes in each step: chunks, mixed steps, single tokens.
_CHUNKS = ((9, 0), (5, 4), (1, 7), (4, 1), (1, 1))


class LayerProbe:
    """An attention function that checks its calls, and records each layer's options.

    Each layer gets a little cache of its own, made when it is first seen.
    """

    def __init__(
        self,
        facts: ModelFacts,
        memory: Memory,
        backend: AttentionBackend,
        num_blocks: int,
        dtype: torch.dtype,
    ) -> None:
        self._facts = facts
        self._storing = memory.storing
        self._backend = backend
        self._num_blocks = num_blocks
        self._dtype = dtype
        self._caches: dict[int, LayerCache] = {}
        self._plans: dict[int, LayerPlan] = {}
        self._seen: set[int] = set()
        self._step: StepInputs | None = None

    def begin(self, step: StepInputs) -> None:
        """The next forward pass is of this step."""
        self._step = step
        self._seen.clear()

    def end(self) -> None:
        """Raise ArchitectureUnfit when a layer of the model did not call it."""
        num_layers = self._facts.num_layers
        storing = range(num_layers) if self._storing is None else self._storing
        absent = sorted(set(storing) - self._seen)
        if absent:
            raise self._unfit(
                f"{len(absent)} of its {num_layers} layers, {absent[0]} first,"
                " keep their state elsewhere than in keys and values"
            )

    @property
    def plans(self) -> tuple[LayerPlan | None, ...]:
        """One per layer, in their order; None: it has no keys and values."""
        return tuple(self._plans.get(index) for index in range(self._facts.num_layers))

    def __call__(
        self,
        module: nn.Module,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        mask: Tensor | None,
        arguments: Mapping[str, Any],
    ) -> Tensor:
        if self._step is None:
            raise AssertionError("attention ran before begin()")
        index = self._layer_index(module)
        self._check_call(module, index, mask, arguments)
        options = self._options(index, query, arguments)
        if index not in self._plans:
            geometry = LayerGeometry(key.shape[1], key.shape[2], value.shape[2])
            self._plans[index] = LayerPlan(geometry, options)
            self._caches[index] = self._backend.allocate(
                self._num_blocks + 1, geometry, key.dtype, key.device
            )
        return self._backend.attend(self._caches[index], query, key, value, self._step, options)

    def _layer_index(self, module: nn.Module) -> int:
        index = getattr(module, "layer_idx", None)
        if not isinstance(index, int) or not 0 <= index < self._facts.num_layers:
            raise self._unfit(f"{type(module).__name__} does not say which layer it is")
        if index in self._seen:
            raise self._unfit(f"layer {index} attends more than once")
        self._seen.add(index)
        return index

    def _check_call(
        self, module: nn.Module, index: int, mask: Tensor | None, arguments: Mapping[str, Any]
    ) -> None:
        if mask is not None:
            raise self._unfit(f"layer {index} brings an attention mask of its own")
        if getattr(module, "is_causal", True) is False or arguments.get("is_causal") is False:
            raise self._unfit(f"layer {index} is not causal: it looks at later tokens")
        known = _HARMLESS | {"scaling", "sliding_window", "softcap", "s_aux"}
        unknown = sorted(
            name
            for name, value in arguments.items()
            if name not in known and value is not None and value is not False
        )
        if unknown:
            raise self._unfit(
                f"layer {index} attends in a way that is not known here: {', '.join(unknown)}"
            )

    def _options(self, index: int, query: Tensor, arguments: Mapping[str, Any]) -> LayerOptions:
        kind = self._facts.layer_types[index] if self._facts.layer_types else None
        window_len = arguments.get("sliding_window")
        if kind == "sliding_attention" and window_len is None:
            raise self._unfit(f"layer {index} has a sliding window but does not say how long it is")
        chunk_len = self._facts.chunk_len if kind == "chunked_attention" else None
        if kind == "chunked_attention" and chunk_len is None:
            raise self._unfit(f"layer {index} attends in chunks but does not say how long they are")
        scale = arguments.get("scaling")
        return LayerOptions(
            scale=query.shape[-1] ** -0.5 if scale is None else float(scale),
            window_len=window_len,
            softcap=arguments.get("softcap"),
            sinks=arguments.get("s_aux"),
            chunk_len=chunk_len,
        )

    def _unfit(self, reason: str) -> ArchitectureUnfit:
        return ArchitectureUnfit(f"{self._facts.class_name} cannot be served: {reason}")


def check_class(facts: ModelFacts) -> None:
    """The static rule. Raises ArchitectureUnfit with the reason."""
    kinds = set(facts.layer_types)
    others = sorted(kinds - _PAGEABLE - _MIXED)
    reason = None
    if others:
        reason = f"its layers of type {', '.join(others)} do not store plain keys and values"
    elif kinds and kinds <= _MIXED - {"hybrid"}:
        reason = "none of its layers attends: it would have states alone"
    elif not facts.routes_attention and not kinds & _MIXED:
        reason = "transformers does not route its attention through a replaceable function"
    elif not facts.keeps_chosen_logits:
        reason = "it cannot give the logits of chosen tokens only"
    elif facts.max_position_embeddings is None:
        reason = "its config names no max_position_embeddings"
    if reason is not None:
        raise ArchitectureUnfit(f"{facts.class_name} cannot be served: {reason}")


def self_test(config: Any, build: Callable[[Any], HfModel]) -> str | None:
    """Try a small model of this config's class, in float32 on the CPU; `build` makes it.

    None: it agrees with itself. A text: no small model could be made or run by its own attention,
    for that reason. Raises ArchitectureUnfit when paged logits and the model's own differ.
    """
    with quiet(), torch.inference_mode():
        try:
            small = shrink(config)
            model = build(small)
            sequences = _sequences(model.facts, torch.device("cpu"))
            expected = [model.native_logits(sequence) for sequence in sequences]
            if _shorten_reaches(small, config, model, sequences[0], build):
                model = build(small)
                expected = [model.native_logits(sequence) for sequence in sequences]
        # The classes of other people fail in every way there is; the caller decides.
        except Exception as error:  # noqa: BLE001
            return f"{type(error).__name__}: {error}"
        if len(expected[0]) <= WINDOW_LEN:
            raise AssertionError("the self-test must outgrow the window")
        memory = learn_memory(model, torch.device("cpu"))
        backend = ReferenceAttention(block_size=4)
        num_blocks = _num_blocks(sequences, backend.block_size)
        probe = LayerProbe(model.facts, memory, backend, num_blocks, torch.float32)
        actual = _run(model, memory, probe, backend, sequences)
        _require_equal(model.facts, expected, actual, _MAX_SMALL_ERROR)
    return None


def find_reaches(config: Any, build: Callable[[Any], HfModel]) -> list[tuple[str, ...]]:
    """Paths of the numbers of the text's config, beside windows and chunks, that show only behind
    them; `build` makes a small model. None where there is no small model.
    """
    with quiet(), torch.inference_mode():
        try:
            small = shrink(config)
            model = build(small)
            token_ids = _sequences(model.facts, torch.device("cpu"))[0]
            return _shorten_reaches(small, config, model, token_ids, build)
        # The classes of other people fail in every way there is.
        except Exception:  # noqa: BLE001
            return []


def _shorten_reaches(
    small: Any, config: Any, model: HfModel, token_ids: Tensor, build: Callable[[Any], HfModel]
) -> list[tuple[str, ...]]:
    """Shorten in `small` what reaches beyond the self-test; answers the paths of these numbers.

    A reach is a number whose shortening leaves the tokens before it as they are, bit for bit, and
    changes some behind it, as a window does, or a length from which on queries grow. Tried is what
    `shrink` has left as it is in `config`, but for sizes and for the longest context, behind which
    nothing is served. `model` is the one of `small`.
    """
    shapes = [parameter.shape for parameter in model.module.parameters()]
    logits = model.native_logits(token_ids)
    whole = _numbers(config.get_text_config())
    found: list[tuple[str, ...]] = []
    for name, (holder, number) in _numbers(small.get_text_config()).items():
        is_kept = name in whole and whole[name][1] == number
        if not is_kept or number <= len(token_ids):
            continue
        if number == model.facts.max_position_embeddings:
            continue
        key = name[-1]
        holder[key] = WINDOW_LEN
        tried = logits
        try:
            with torch.device("meta"):
                empty = type(model.module)(small)
            if [parameter.shape for parameter in empty.parameters()] == shapes:
                tried = build(small).native_logits(token_ids)
        # Of a number that is no reach a class may want anything.
        except Exception:  # noqa: BLE001
            pass
        before = WINDOW_LEN - 1  # some count the last token in
        if torch.equal(tried[:before], logits[:before]) and not torch.equal(tried, logits):
            logits = tried
            found.append(name)
        else:
            holder[key] = number
    return found


def _numbers(
    holder: Any, path: tuple[str, ...] = ()
) -> dict[tuple[str, ...], tuple[dict[str, Any], int]]:
    """Path of names -> where it stands and the number, of a config's integers and its ropes'."""
    content = holder if isinstance(holder, dict) else vars(holder)
    found: dict[tuple[str, ...], tuple[dict[str, Any], int]] = {}
    for name, value in content.items():
        if isinstance(value, int) and not isinstance(value, bool):
            found[(*path, name)] = (content, value)
        elif isinstance(value, dict) and (path or name == "rope_parameters"):
            found |= _numbers(value, (*path, name))
    return found


def learn_memory(model: HfModel, device: torch.device) -> Memory:
    """What the model's layers remember; those with states are let run by sequences from here on.

    Raises ArchitectureUnfit.
    """
    if not set(model.facts.layer_types) & _MIXED:
        return Memory()
    with torch.inference_mode():
        memory = find_mixers(model, _sequences(model.facts, device)[0])
    split_mixers(model, memory.mixers)
    return memory


def probe_layers(
    model: HfModel,
    memory: Memory,
    backend: AttentionBackend,
    dtype: torch.dtype,
    device: torch.device,
    expected: Sequence[Tensor] | None = None,
) -> tuple[LayerPlan | None, ...]:
    """Run the loaded model on two short sequences, and compare with `expected_logits` of them.

    Raises ArchitectureUnfit when they differ by more than the dtype explains.
    """
    sequences = _sequences(model.facts, device)
    num_blocks = _num_blocks(sequences, backend.block_size)
    probe = LayerProbe(model.facts, memory, backend, num_blocks, dtype)
    with torch.inference_mode():
        actual = _run(model, memory, probe, backend, sequences)
        if expected is not None:
            _require_equal(model.facts, expected, actual, _MAX_ERROR[dtype])
    return probe.plans


def expected_logits(model: HfModel, device: torch.device) -> list[Tensor]:
    """The logits that `probe_layers` expects, by the model's own attention.

    Raises ArchitectureUnfit for a model that does not run: its config may be another class's.
    """
    with torch.inference_mode():
        try:
            return [model.native_logits(sequence) for sequence in _sequences(model.facts, device)]
        # The classes of other people fail in every way there is.
        except Exception as error:
            raise ArchitectureUnfit(
                f"{model.facts.class_name} does not run with this config.json; is `model_type` the"
                f" model's? {type(error).__name__}: {error}"
            ) from error


def _sequences(facts: ModelFacts, device: torch.device) -> list[Tensor]:
    """Two sequences of unlike tokens, of the lengths that the chunks add up to."""
    num_tokens = min(NUM_TOKENS, facts.vocab_size)
    lens = [sum(chunks) for chunks in zip(*_CHUNKS, strict=True)]
    return [
        (torch.arange(1, length + 1, device=device) * (7 + 4 * index)) % num_tokens
        for index, length in enumerate(lens)
    ]


def _num_blocks(sequences: Sequence[Tensor], block_size: int) -> int:
    return sum(-(-len(sequence) // block_size) for sequence in sequences)


def _run(
    model: HfModel,
    memory: Memory,
    probe: LayerProbe,
    backend: AttentionBackend,
    sequences: Sequence[Tensor],
) -> list[Tensor]:
    """Logits of every token of every sequence, computed in chunks over interleaved blocks.

    Each sequence has two slots for its states, of which it reads one and writes the other.
    """
    device = sequences[0].device
    states = StatePool(memory, 2 * len(sequences), device)
    read_ids: list[int | None] = [None] * len(sequences)
    block_size = backend.block_size
    num_blocks = _num_blocks(sequences, block_size)
    token_ids = [sequence.tolist() for sequence in sequences]
    # The first takes the blocks from the end, the second what is left: none lie in order.
    blocks = list(range(num_blocks))
    tables = [[blocks.pop() for _ in range(-(-len(ids) // block_size))] for ids in token_ids]
    done = [0] * len(sequences)
    rows: list[list[Tensor]] = [[] for _ in sequences]
    for place, chunk_lens in enumerate(_CHUNKS):
        active = [index for index, chunk_len in enumerate(chunk_lens) if chunk_len]
        write_ids = [2 * index + place % 2 for index in range(len(sequences))]
        step = StepInputs.build(
            [
                SequenceStep(
                    token_ids[index][done[index] : done[index] + chunk_lens[index]],
                    done[index],
                    tables[index],
                    chunk_lens[index],
                    StateStep(read_ids[index], write_ids[index]),
                )
                for index in active
            ],
            block_size=block_size,
            scratch_block_id=num_blocks,
            device=device,
        )
        cache = MixerCache(step, states) if memory.mixers else None
        probe.begin(step)
        try:
            logits = model.paged_logits(
                step.token_ids, step.positions, step.logits_indices, probe, cache
            )
        except (ArchitectureUnfit, torch.OutOfMemoryError):
            raise
        # The classes of other people fail in every way there is.
        except Exception as error:
            raise ArchitectureUnfit(
                f"{model.facts.class_name} cannot be served: it does not run on paged, flattened"
                f" batches: {type(error).__name__}: {error}"
            ) from error
        probe.end()
        parts = logits.split([chunk_lens[index] for index in active])
        for index, part in zip(active, parts, strict=True):
            rows[index].append(part)
            done[index] += chunk_lens[index]
            read_ids[index] = write_ids[index]
    return [torch.cat(parts) for parts in rows]


def _require_equal(
    facts: ModelFacts, expected: Sequence[Tensor], actual: Sequence[Tensor], max_error: float
) -> None:
    native = torch.cat(tuple(expected)).float()
    paged = torch.cat(tuple(actual)).float()
    error = (native - paged).square().mean().sqrt() / native.std().clamp_min(1e-30)
    # Written so that NaN does not pass.
    if not error <= max_error:
        raise ArchitectureUnfit(
            f"{facts.class_name} cannot be served: on paged, flattened batches its logits are not"
            f" its own (relative error {error:.2g}, at most {max_error:.2g} is allowed)"
        )


_MAX_LAYERS = 8


_SHARED_LAYERS = 2  # that take keys and values of earlier ones, where a model has such layers


_WIDTH = 64


_NUM_EXPERTS = 4


# Twice to three times the usual, so that attention scores are large enough to feel a softcap.
_WEIGHT_STD = 0.05


_WIDTHS = (
    "intermediate_size",
    "ffn_dim",
    "moe_intermediate_size",
    "shared_expert_intermediate_size",
    "intermediate_size_mlp",
)


# The last two are of state spaces, which compute so many tokens at once.
_REACHES = ("sliding_window", "attention_chunk_size", "chunk_size", "mamba_chunk_size")


_VOCABULARIES = ("vocab_size", "vocab_size_per_layer_input")


_EXPERT_COUNTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")


_TOKEN_IDS = ("pad_token_id", "bos_token_id", "eos_token_id")


def shrink(config: Any) -> Any:
    """A small copy of `config`, in float32 and without quantization."""
    small = copy.deepcopy(config)
    text = small.get_text_config()
    if getattr(small, "quantization_config", None) is not None:
        del small.quantization_config
    _shrink_layers(text)
    _shrink_heads(text)
    _shrink_experts(text)
    for names, number in (
        (_WIDTHS, _WIDTH),
        (_REACHES, WINDOW_LEN),
        (_VOCABULARIES, NUM_TOKENS),
        (_TOKEN_IDS, 0),
    ):
        for name in names:
            _set_if_there(text, name, number)
    if getattr(text, "initializer_range", None):
        text.initializer_range = _WEIGHT_STD
    for name in small.sub_configs:
        part = getattr(small, name, None)
        if part is not None and part is not text and hasattr(part, "num_hidden_layers"):
            part.num_hidden_layers = 1
    return small


def _set_if_there(text: Any, name: str, number: int) -> None:
    """Replace a number, or each of a list of them; what is None stays so."""
    value = getattr(text, name, None)
    if isinstance(value, list):
        setattr(text, name, [number] * len(value))
    elif value is not None:
        setattr(text, name, number)


def _shrink_layers(text: Any) -> None:
    """The first layers, as many as contain every kind."""
    num_layers = text.num_hidden_layers
    kinds = list(getattr(text, "layer_types", None) or ())
    needed = max((kinds.index(kind) + 1 for kind in set(kinds)), default=1)
    num_shared = min(_SHARED_LAYERS, getattr(text, "num_kv_shared_layers", None) or 0)
    num_kept = min(num_layers, max(2, needed) + num_shared, _MAX_LAYERS)
    per_layer = {
        name: value[:num_kept]
        for name, value in vars(text).items()
        if isinstance(value, list) and len(value) == num_layers and num_layers > num_kept
    }
    text.num_hidden_layers = num_kept
    if num_shared:
        text.num_kv_shared_layers = num_shared
    for name, value in per_layer.items():
        setattr(text, name, value)


def _shrink_heads(text: Any) -> None:
    if getattr(text, "is_heterogeneous", False):
        # Its layers have heads of unlike sizes, and only the config itself knows which.
        return
    num_heads = text.num_attention_heads
    num_kv_heads = getattr(text, "num_key_value_heads", None)
    head_dim = getattr(text, "head_dim", None) or text.hidden_size // num_heads
    small_heads = 2
    small_kv_heads = 2
    if num_kv_heads == 1:
        small_kv_heads = 1
    elif num_kv_heads is not None and num_kv_heads < num_heads:
        small_heads = 4
    hidden_size = small_heads * head_dim
    # OPT projects its embeddings only when their width is not the model's.
    if getattr(text, "word_embed_proj_dim", None) == text.hidden_size:
        text.word_embed_proj_dim = hidden_size
    text.hidden_size = hidden_size
    text.num_attention_heads = small_heads
    if num_kv_heads is not None:
        text.num_key_value_heads = small_kv_heads
    # Of linear attention, several of which may share their keys.
    num_keys = getattr(text, "linear_num_key_heads", None)
    num_values = getattr(text, "linear_num_value_heads", None)
    for name, number in (
        ("linear_num_heads", 2),
        ("linear_num_key_heads", 2),
        ("linear_num_value_heads", 2 if num_keys == num_values else 4),
    ):
        _set_if_there(text, name, number)


def _shrink_experts(text: Any) -> None:
    for name in _EXPERT_COUNTS:
        if getattr(text, name, None):
            setattr(text, name, _NUM_EXPERTS)
    if (getattr(text, "num_experts_per_tok", None) or 0) > 2:
        text.num_experts_per_tok = 2
    for name in ("n_group", "topk_group", "first_k_dense_replace"):
        if getattr(text, name, None):
            setattr(text, name, 1)
