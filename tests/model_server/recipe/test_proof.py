"""A recipe read from a config computes what the model of that config does, weights and all.

And the proof refuses a recipe that is wrong in one place. Of a layer, the first that can be so
changed is. Left out is what computes the same: norms exchanged that are one, and the epsilon of a
norm that is a constant of its class, too small to be felt. That one is read from the norm alone.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import Tensor
from transformers import AutoConfig, DeepseekV2Config, DeepseekV3Config
from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2Moe
from transformers.models.deepseek_v3.modeling_deepseek_v3 import DeepseekV3MoE

from model_server.recipe import dense_torch
from model_server.recipe.dense_torch import (
    DenseTorch,
    angles_of,
    convolve,
    log_decay,
    normalise,
    route,
    scan,
    time_steps,
)
from model_server.recipe.proof import (
    MAX_ERROR,
    read_recipe,
    relative_error,
    require_near,
    require_same,
    require_used_once,
)
from model_server.recipe.reader import read
from model_server.recipe.recipe import (
    Attention,
    Conv,
    Delta,
    Groups,
    Head,
    Layer,
    Linear,
    Mamba2,
    Mixer,
    Mlp,
    Moe,
    Norm,
    Recipe,
    Rows,
    ShortConv,
    Unreadable,
)
from model_server.recipe.recording import native_logits, real
from model_server.recipe.small import parameters_of, randomise, small_model
from model_server.zoo import build_empty, build_small
from tests.model_server.recipe.families import (
    EXECUTED,
    EXECUTED_ON_CPUS,
    EXPERTS,
    FAMILIES,
    by_night,
    config,
    family,
)

Mutants = Iterator[tuple[str, Any]]

_OTHER_ACTIVATION = {
    "silu": "gelu",
    "gelu": "gelu_tanh",
    "gelu_tanh": "gelu",
    "relu2": "relu",
    "clamped_swiglu": "silu",
}
_SCORINGS = ("softmax", "softmax_normed", "sigmoid", "sigmoid_normed")
_OTHER_LAYOUT = {"gate_up": "gate_up_pairs", "gate_up_pairs": "gate_up"}
_PLACES = ("attention_norm", "attention_post_norm", "mlp_norm", "mlp_post_norm")


def mutants(recipe: Recipe) -> Mutants:
    seen: set[str] = set()
    for index, layer in enumerate(recipe.layers):
        for name, changed in _layers(layer, recipe):
            if name not in seen:
                seen.add(name)
                layers = (*recipe.layers[:index], changed, *recipe.layers[index + 1 :])
                yield name, replace(recipe, layers=layers)
    for name, norm in _norms(recipe.final_norm):
        yield f"final norm {name}", replace(recipe, final_norm=norm)
    first, second, *rest = recipe.layers
    yield "two layers exchanged", replace(recipe, layers=(second, first, *rest))
    yield "a layer dropped", replace(recipe, layers=recipe.layers[1:])
    yield "embed scale +0.1%", replace(recipe, embed_scale=recipe.embed_scale * 1.001)
    yield "logit scale +0.1%", replace(recipe, logit_scale=recipe.logit_scale * 1.001)
    if recipe.embed_scale != 1:
        yield "embed scale dropped", replace(recipe, embed_scale=1.0)
    if recipe.softcap is not None:
        yield "final softcap dropped", replace(recipe, softcap=None)
        yield "final softcap +10%", replace(recipe, softcap=recipe.softcap * 1.1)
    if recipe.head.weight != recipe.embedding:
        tied = replace(recipe.head, weight=recipe.embedding, bias=None)
        yield "head tied", replace(recipe, head=tied)
    if recipe.head.bias is not None:
        yield "head bias dropped", replace(recipe, head=replace(recipe.head, bias=None))


def _layers(layer: Layer, recipe: Recipe) -> Mutants:
    for name, mixer in _mixers(layer.mixer, recipe):
        yield name, replace(layer, mixer=mixer)
    if layer.mlp is not None:
        for name, mlp in _mlps(layer.mlp):
            yield f"mlp {name}", replace(layer, mlp=mlp)
        yield "mlp dropped", replace(layer, mlp=None)
        yield "parallel flipped", replace(layer, parallel=not layer.parallel)
    for place in _PLACES:
        for name, norm in _norms(getattr(layer, place)):
            yield f"{place} {name}", replace(layer, **{place: norm})
    for first, second in (_PLACES[:2], _PLACES[2:], _PLACES[::2], _PLACES[1:3]):
        if getattr(layer, first) != getattr(layer, second):
            swapped = {first: getattr(layer, second), second: getattr(layer, first)}
            yield f"{first} and {second} exchanged", replace(layer, **swapped)
    yield "residual scale +0.1%", replace(layer, residual_scale=layer.residual_scale * 1.001)


def _mixers(mixer: Mixer, recipe: Recipe) -> Mutants:
    if isinstance(mixer, Attention):
        yield from _attentions(mixer, recipe)
    elif isinstance(mixer, Delta):
        for name, delta in _deltas(mixer):
            yield f"delta {name}", delta
    elif isinstance(mixer, Mamba2):
        for name, mamba in _mamba2s(mixer):
            yield f"mamba {name}", mamba
    else:
        for name, short in _short_convs(mixer):
            yield f"conv {name}", short


def _short_convs(short: ShortConv) -> Mutants:
    gates: Any = {"gate_in": short.gate_out, "gate_out": short.gate_in}
    yield "gates exchanged", replace(short, **gates)
    yield "gate as value", replace(short, value=short.gate_in)
    for side in ("gate_in", "value", "gate_out", "output"):
        for name, linear in _linears(getattr(short, side)):
            yield f"{side} {name}", replace(short, **{side: linear})
    if short.conv.bias is not None:
        yield "bias dropped", replace(short, conv=replace(short.conv, bias=None))


def _mamba2s(mamba: Mamba2) -> Mutants:
    for side in ("gate", "value", "b", "c", "dt", "output"):
        for name, linear in _linears(getattr(mamba, side)):
            yield f"{side} {name}", replace(mamba, **{side: linear})
    for first, second in (("b", "c"), ("value", "gate"), ("a_log", "dt_bias"), ("skip", "dt_bias")):
        exchanged: Any = {first: getattr(mamba, second), second: getattr(mamba, first)}
        yield f"{first} and {second} exchanged", replace(mamba, **exchanged)
    no_limits = (0.0, torch.inf)
    limits = (0.3, 2.0) if mamba.dt_limits == no_limits else no_limits
    yield "limits dropped or added", replace(mamba, dt_limits=limits)
    yield "gate on the other side", replace(mamba, gate_first=not mamba.gate_first)
    of_all = replace(mamba.norm, width=mamba.num_heads * mamba.head_dim)
    yield "norm over all groups", replace(mamba, norm=of_all)
    for name, norm in _norms(mamba.norm):
        if norm is not None:
            yield f"norm {name}", replace(mamba, norm=norm)
    if mamba.conv.bias is not None:
        yield "bias dropped", replace(mamba, conv=replace(mamba.conv, bias=None))


def _deltas(delta: Delta) -> Mutants:
    for side in ("query", "key", "value", "gate", "beta", "alpha"):
        for name, linear in _linears(getattr(delta, side)):
            yield f"{side} {name}", replace(delta, **{side: linear})
    for first, second in (("query", "key"), ("value", "gate"), ("beta", "alpha")):
        exchanged: Any = {first: getattr(delta, second), second: getattr(delta, first)}
        yield f"{first} and {second} exchanged", replace(delta, **exchanged)
    yield "decay exchanged", replace(delta, a_log=delta.dt_bias, dt_bias=delta.a_log)
    yield "beta doubled", replace(delta, beta_scale=2 * delta.beta_scale)
    for name, norm in _norms(delta.norm):
        if norm is not None:
            yield f"norm {name}", replace(delta, norm=norm)


def _attentions(attention: Attention, recipe: Recipe) -> Mutants:
    for side in ("query", "key"):
        for name, head in _heads(getattr(attention, side), recipe):
            yield f"{side} {name}", replace(attention, **{side: head})
    for name, head in _heads(attention.query, recipe):
        if name.startswith("rope"):
            key = replace(attention.key, rope=head.rope)
            yield f"query and key {name}", replace(attention, query=head, key=key)
    for side in ("value", "output"):
        for name, linear in _linears(getattr(attention, side)):
            yield f"{side} {name}", replace(attention, **{side: linear})
    if attention.key.linear.rows.count == attention.value.rows.count:
        yield "key as value", replace(attention, value=attention.key.linear)
    if attention.gate is not None:
        yield "gate dropped", replace(attention, gate=None)
        yield "query as gate", replace(attention, gate=attention.query.linear)
    yield from _reaches(attention)


def _reaches(attention: Attention) -> Mutants:
    yield "scale +1%", replace(attention, scale=attention.scale * 1.01)
    if attention.window_len is None:
        yield "window added", replace(attention, window_len=16)
    else:
        for window_len in (attention.window_len - 1, attention.window_len + 1, None):
            yield f"window {window_len}", replace(attention, window_len=window_len)
    yield "chunk added", replace(attention, chunk_len=16)
    if attention.softcap is not None:
        yield "softcap dropped", replace(attention, softcap=None)
        yield "softcap +10%", replace(attention, softcap=attention.softcap * 1.1)
    if attention.sinks is not None:
        yield "sinks dropped", replace(attention, sinks=None)


def _heads(head: Head, recipe: Recipe) -> Mutants:
    for name, linear in _linears(head.linear):
        yield name, replace(head, linear=linear)
    for name, norm in _norms(head.norm):
        yield f"norm {name}", replace(head, norm=norm)
    if head.rope is None:
        return
    other: Any = "interleaved" if head.rope.pairing == "half" else "half"
    yield "rope pairing", replace(head, rope=replace(head.rope, pairing=other))
    yield "rope dropped", replace(head, rope=None)
    if len(recipe.rotary) > 1:
        yield "rope source", replace(head, rope=replace(head.rope, source=1 - head.rope.source))
    if head.norm is not None:
        yield "norm beyond rope", replace(head, norm_after_rope=not head.norm_after_rope)


def _linears(linear: Linear) -> Mutants:
    if linear.bias is not None:
        yield "bias dropped", replace(linear, bias=None)
    rows = linear.rows
    if rows.blocks > 1 or rows.start:
        yield "rows from 0", replace(linear, rows=Rows(0, 1, rows.count, rows.count))


def _norms(norm: Norm | None) -> Mutants:
    if norm is None:
        return
    yield "dropped", None
    yield "kind flipped", replace(norm, kind="layer" if norm.kind == "rms" else "rms")
    if norm.eps > 1e-3:  # what is a constant of a class is too small to be felt
        yield "eps x10", replace(norm, eps=norm.eps * 10)
    if norm.weights:
        yield "plus one flipped", replace(norm, plus_one=not norm.plus_one)
        yield "weight dropped", replace(norm, weights=(), biases=(), plus_one=False)
    if norm.biases:
        yield "bias dropped", replace(norm, biases=())
    if len(norm.weights) == 1:
        yield "width halved", replace(norm, width=norm.width // 2)


def _mlps(mlp: Mlp | Moe) -> Mutants:
    yield "activation", replace(mlp, activation=_OTHER_ACTIVATION[mlp.activation])  # type: ignore[arg-type]
    if mlp.layout in _OTHER_LAYOUT:
        yield "layout", replace(mlp, layout=_OTHER_LAYOUT[mlp.layout])  # type: ignore[arg-type]
    if isinstance(mlp, Moe):
        yield from _mixtures(mlp)
        return
    if len(mlp.ins) == 2:
        yield "gate and up exchanged", replace(mlp, ins=mlp.ins[::-1])
    for index, linear in enumerate(mlp.ins):
        for name, changed in _linears(linear):
            ins = (*mlp.ins[:index], changed, *mlp.ins[index + 1 :])
            yield f"in {index} {name}", replace(mlp, ins=ins)
    for name, changed in _linears(mlp.out):
        yield f"out {name}", replace(mlp, out=changed)


def _mixtures(moe: Moe) -> Mutants:
    for scoring in _SCORINGS:
        if scoring != moe.scoring:
            yield f"scoring by {scoring}", replace(moe, scoring=scoring)  # type: ignore[arg-type]
    for top_k in (moe.top_k - 1, moe.top_k + 1):
        yield f"top {top_k}", replace(moe, top_k=top_k)
    for name in ("gate_up_bias", "down_bias", "shared", "shared_gate", "correction", "groups"):
        if getattr(moe, name) is not None:
            without: Any = {name: None}
            yield f"{name} dropped", replace(moe, **without)
    if moe.scale != 1:
        yield "scale dropped", replace(moe, scale=1.0)
    if (groups := moe.groups) is not None:
        yield (
            "groups by another sum",
            replace(moe, groups=replace(groups, num_best=3 - groups.num_best)),
        )
        yield "one group more", replace(moe, groups=replace(groups, top_k=groups.top_k + 1))
        yield "one group less", replace(moe, groups=replace(groups, top_k=groups.top_k - 1))
    for name, router in _linears(moe.router):
        yield f"router {name}", replace(moe, router=router)
    if moe.shared is not None:
        for name, shared in _mlps(moe.shared):
            yield f"shared {name}", replace(moe, shared=shared)


LENS = (23, 9, 1, 17)

# Between them these have every mutant that any family has.
MUTATED = (
    "gemma3_text",
    "persimmon",
    "lfm2-bias",
    "nemotron_h",
    "dots1",
    "gemma2",
    "gpt_oss",
    "phi",
    "qwen3_next",
)

# Families with a delta rule, and with a selective state space.
RULED = ("qwen3_5", "qwen3_5_moe", "qwen3_next", "olmo_hybrid")
SCANNED = ("bamba", "granite4", "nemotron_h")


class Judge:
    """A model of random parameters, and how far a recipe is from what it computes."""

    def __init__(self, model: Any, recipe: Recipe, seed: int) -> None:
        randomise(model, seed=seed)
        self._parameters = parameters_of(model)
        self._rotary = angles_of(recipe, model)
        generator = torch.Generator().manual_seed(2)
        self._token_ids = torch.randint(0, 130, (sum(LENS),), generator=generator)
        sequences = self._token_ids.split(list(LENS))
        with torch.inference_mode():
            self._expected = torch.cat([native_logits(model, ids) for ids in sequences])

    def error(self, recipe: Recipe, lens: tuple[int, ...] = LENS) -> float:
        try:
            logits = DenseTorch(recipe, self._parameters, self._rotary).logits(
                self._token_ids, lens
            )
        # Shapes that do not fit are refused as well.
        except (RuntimeError, IndexError):
            return torch.inf
        return relative_error(logits, self._expected)


# Of the others, each recipe is read by day by tests of executors or of mutants.
READ_ELSEWHERE = {*EXECUTED, *EXECUTED_ON_CPUS, *MUTATED}
# These are read as another is.
ALIKE = {"solar_open", "exaone_moe", "granitemoehybrid", "granite4", "bamba", "afmoe"}


@pytest.mark.parametrize("name", by_night(READ_ELSEWHERE | ALIKE))
def test_a_recipe_is_that_of_the_real_model_not_of_a_narrow_one(name: str) -> None:
    recipe = read_recipe(family(name), trust_remote_code=False)
    judge = Judge(build_small(family(name), trust_remote_code=False).module, recipe, seed=3)
    assert judge.error(recipe) < 2e-5


@pytest.mark.slow
@pytest.mark.parametrize("name", by_night(set(FAMILIES) - set(MUTATED)))
def test_every_wrong_recipe_is_refused(name: str) -> None:
    model = small_model(family(name), trust_remote_code=False)
    recipe = read(model)
    judge = Judge(model, recipe, seed=1)

    errors = {each: judge.error(mutant) for each, mutant in mutants(recipe)}
    errors["sequences in one"] = judge.error(recipe, (sum(LENS),))

    assert len(errors) >= 30
    assert [each for each, wrong in errors.items() if wrong <= MAX_ERROR] == []
    assert judge.error(recipe) <= MAX_ERROR


def _no_bias(alpha: Tensor, a_log: Tensor, dt_bias: Tensor) -> Tensor:
    return log_decay(alpha, a_log, torch.zeros_like(dt_bias))


def _reversed(
    conv: Conv, x: Tensor, window: Tensor, weights: Mapping[str, Tensor]
) -> tuple[Tensor, Tensor]:
    return convolve(conv, x, window, {**weights, conv.weight: weights[conv.weight].flip(-1)})


def _gate_first(norm: Norm, x: Tensor, gate: Tensor, weights: Mapping[str, Tensor]) -> Tensor:
    return normalise(norm, x * torch.nn.functional.silu(gate), weights)


def _unbiased(dt: Tensor, dt_bias: Tensor, limits: tuple[float, float]) -> Tensor:
    return time_steps(dt, torch.zeros_like(dt_bias), limits)


def _no_skip(
    v: Tensor, b: Tensor, c: Tensor, dt: Tensor, a_log: Tensor, skip: Tensor, matrices: Tensor
) -> tuple[Tensor, Tensor]:
    return scan(v, b, c, dt, a_log, torch.zeros_like(skip), matrices)


# Name of a piece of the oracle -> the piece, wrong in one place.
Pieces = dict[str, Callable[..., Any]]
WRONG_MIXERS: Pieces = {
    "convolve": _reversed,
    "of_key_heads": lambda x, num_heads: x.repeat(1, num_heads // x.shape[1], 1),
}
WRONG_RULES: Pieces = {
    **WRONG_MIXERS,
    "unit": lambda x: x,
    "log_decay": _no_bias,
    "gated": _gate_first,
}
WRONG_SCANS: Pieces = {**WRONG_MIXERS, "time_steps": _unbiased, "scan": _no_skip}


@pytest.mark.parametrize(
    "name",
    by_night({*RULED, *SCANNED} - {"qwen3_next", "bamba"}, (*RULED, *SCANNED, "lfm2")),
)
def test_every_wrong_rule_scan_or_convolution_is_refused(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pieces: Pieces = {"convolve": _reversed}
    if name in RULED:
        pieces = WRONG_RULES
    elif name in SCANNED:
        pieces = WRONG_SCANS
    model = small_model(family(name), trust_remote_code=False)
    recipe = read(model)
    judge = Judge(model, recipe, seed=1)
    errors = {}
    for piece, wrong in pieces.items():
        with monkeypatch.context() as patched:
            patched.setattr(dense_torch, piece, wrong)
            errors[piece] = judge.error(recipe)

    assert [each for each, error in errors.items() if error <= MAX_ERROR] == []
    assert judge.error(recipe) <= MAX_ERROR


@pytest.mark.parametrize(
    ("kind", "changes", "reason"),
    [
        ("gpt2", {"n_embd": 192, "n_layer": 6, "n_head": 8}, "learned positions"),
        ("opt", {"ffn_dim": 200, "word_embed_proj_dim": 192}, "another width"),
        ("bloom", {"hidden_size": 192, "n_layer": 6, "n_head": 8}, "none of its layers attends"),
        ("apertus", {}, "activation of its MLP"),
        ("olmo", {"clip_qkv": 8.0}, "values are no output of a linear layer"),
        ("gpt_oss", {**EXPERTS, "head_dim": 32, "swiglu_limit": 10.0}, "what its experts compute"),
        ("gpt_oss", {**EXPERTS, "head_dim": 32, "swiglu_alpha": 1.5}, "what its experts compute"),
        (
            "deepseek_v3",
            {**EXPERTS, "n_group": 1, "topk_group": 1},
            "multi-head latent attention is not read",
        ),
        # Attention and a selective state space beside each other.
        ("falcon_h1", {"mamba_d_ssm": 384, "mamba_n_heads": 16}, "mixes its tokens more than once"),
        (
            "nemotron_h",
            {"head_dim": 32, "layers_block_type": ["mlp", "full_attention"] * 3},
            "layers.0 does not mix tokens in a way that is known",
        ),
        ("phimoe", EXPERTS, "how it chooses experts is not known"),
        ("llama4_text", {**EXPERTS, "head_dim": 32}, "how its queries or keys come about"),
        # Its queries grow with the position, behind the original length.
        (
            "ministral3",
            {"max_position_embeddings": 262_144},
            "something else at its last positions",
        ),
    ],
)
def test_what_no_recipe_describes_is_refused_with_the_reason(
    kind: str, changes: dict[str, Any], reason: str
) -> None:
    with pytest.raises(Unreadable, match=reason):
        read_recipe(config(kind, **changes), trust_remote_code=False)


def test_a_config_whose_numbers_are_its_layers_is_refused_with_the_reason() -> None:
    """Whoever asks all of it for one of them gets an error of the config's own."""
    with pytest.raises(Unreadable, match="multi-head latent attention is not read"):
        read_recipe(AutoConfig.for_model("dots3_note_text"), trust_remote_code=False)


def test_deepseek_experts_are_read_in_layers_whose_attention_is() -> None:
    """V3's, and V2's, whose groups are ranked by their best expert."""
    model = small_model(family("dots1"), trust_remote_code=False)
    settings = model.config.to_dict()
    second = DeepseekV2Config(**{**settings, "topk_method": "group_limited_greedy"})
    for layer in model.model.layers[1:3]:
        layer.mlp = DeepseekV2Moe(second)
    for layer in model.model.layers[3:]:
        layer.mlp = DeepseekV3MoE(DeepseekV3Config(**settings))
    randomise(model, seed=0)

    recipe = read(model)

    require_same(recipe, model)
    found = []
    for layer in recipe.layers[1:]:
        assert isinstance(layer.mlp, Moe)
        found.append((layer.mlp.scoring, layer.mlp.correction is None, layer.mlp.groups))
    assert found[:2] == [("softmax", True, Groups(num_groups=3, top_k=2, num_best=1))] * 2
    assert found[2:] == [("sigmoid", False, Groups(num_groups=3, top_k=2, num_best=2))] * 3


def test_a_correction_that_reaches_the_weights_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    model = small_model(family("glm4_moe"), trust_remote_code=False)
    recipe = read(model)

    def corrected(
        moe: Moe, x: Tensor, weights: Mapping[str, Tensor], _: Tensor | None
    ) -> tuple[Tensor, Tensor]:
        experts, scores = route(replace(moe, scoring="sigmoid", scale=1.0), x, weights)
        assert moe.correction is not None
        scores = scores + weights[moe.correction][experts]
        return experts, scores / scores.sum(-1, keepdim=True) * moe.scale

    require_same(recipe, model)
    monkeypatch.setattr("model_server.recipe.dense_torch.route", corrected)
    with pytest.raises(Unreadable, match="computes something else"):
        require_same(recipe, model)


def test_what_shows_only_behind_a_number_of_the_config_is_refused_when_that_is_shortened() -> None:
    """Of a reach behind the last position, the last positions know nothing either."""
    rope = {"rope_type": "default", "rope_theta": 10000.0, "llama_4_scaling_beta": 0.1}
    rope["original_max_position_embeddings"] = 300
    ministral = config("ministral3", rope_parameters=rope)
    reaches = [("rope_parameters", "original_max_position_embeddings")]

    read_recipe(ministral, trust_remote_code=False)
    with pytest.raises(Unreadable, match="how its queries or keys come about"):
        read_recipe(ministral, trust_remote_code=False, reaches=reaches)


def test_a_model_that_sees_is_read_for_its_text() -> None:
    text = {**family("gemma3_text").to_dict(), "num_hidden_layers": 2}
    text["layer_types"] = text["layer_types"][:2]
    eyes = {"hidden_size": 32, "intermediate_size": 48, "num_attention_heads": 2}
    both = AutoConfig.for_model("gemma3", text_config=text, vision_config=eyes)

    recipe = read_recipe(both, trust_remote_code=False)

    assert recipe.embedding == "model.language_model.embed_tokens.weight"
    assert recipe.layers[0].attention.window_len == 11
    assert not any("vision" in name for name in recipe.weights())


def test_an_epsilon_that_no_config_names_is_the_constant_of_the_class() -> None:
    recipe = read_recipe(family("olmo"), trust_remote_code=False)

    assert {layer.attention_norm.eps for layer in recipe.layers if layer.attention_norm} == {1e-5}


def test_a_recipe_that_computes_nearly_the_same_is_not_that_of_the_model() -> None:
    model = small_model(family("phi"), trust_remote_code=False)
    recipe = read(model)
    require_same(recipe, model)
    # One form of GELU in place of another, the least of all mutants.
    wrong = dict(mutants(recipe))["mlp activation"]
    with pytest.raises(Unreadable, match="computes something else"):
        require_same(wrong, model)


def test_a_weight_that_a_recipe_leaves_out_is_named() -> None:
    recipe, model = _read("llama")
    with pytest.raises(Unreadable, match=r"not known: model\.norm\.weight"):
        require_used_once(replace(recipe, final_norm=None), model)


def test_rows_of_a_merged_weight_must_cover_it_once() -> None:
    recipe, model = _read("phi3")
    first, *rest = recipe.layers
    attention = replace(first.attention, value=first.attention.key.linear)
    layers = (replace(first, mixer=attention), *rest)
    with pytest.raises(Unreadable, match="qkv_proj"):
        require_used_once(replace(recipe, layers=layers), model)


def test_a_buffer_of_the_checkpoint_that_nothing_explains_is_refused() -> None:
    recipe, model = _read("llama")
    model.model.register_buffer("correction", torch.zeros(3))
    with pytest.raises(Unreadable, match=r"model\.correction"):
        require_used_once(recipe, model)


def test_two_narrow_scalars_of_one_value_are_not_guessed_apart() -> None:
    small = family("granite")
    config = family("granite")
    small.residual_multiplier = small.attention_multiplier
    assert real(0.22, family("granite"), config, "it") == 0.22
    with pytest.raises(Unreadable, match="source is not clear"):
        real(small.attention_multiplier, small, config, "it")


def _read(name: str) -> tuple[Recipe, Any]:
    model = build_empty(family(name), trust_remote_code=False).module
    return read_recipe(family(name), trust_remote_code=False), model


EXACT = torch.randn(20, 50, generator=torch.Generator().manual_seed(0))
NOISE = 0.01 * torch.randn(20, 50, generator=torch.Generator().manual_seed(1))


def test_an_executor_may_be_a_little_farther_from_float32_than_transformers() -> None:
    require_near(EXACT - 1.2 * NOISE, (EXACT + NOISE).bfloat16(), EXACT, torch.bfloat16)
    with pytest.raises(Unreadable, match="the executor's relative error is"):
        require_near(EXACT - 1.5 * NOISE, (EXACT + NOISE).bfloat16(), EXACT, torch.bfloat16)


def test_a_recipe_from_which_transformers_is_far_is_refused() -> None:
    with pytest.raises(Unreadable, match="the loaded weights give other logits"):
        require_near(EXACT, (EXACT + 20 * NOISE).bfloat16(), EXACT, torch.bfloat16)


def test_experts_that_rounding_exchanged_are_no_fault_of_a_recipe() -> None:
    """Of the experts that transformers chose, it is near; and the executor is as far as it is."""
    native = (EXACT + 20 * NOISE).bfloat16()
    require_near(EXACT + 20 * NOISE, native, EXACT, torch.bfloat16, EXACT + 19 * NOISE)
    with pytest.raises(Unreadable, match="the loaded weights give other logits"):
        require_near(EXACT, native, EXACT, torch.bfloat16, EXACT + NOISE)


def test_a_recipe_that_chooses_other_experts_is_refused() -> None:
    """Logits do not show it: they are compared with the experts that the class chose."""
    model = small_model(family("dots1"), trust_remote_code=False)
    recipe = read(model)
    moe = recipe.layers[1].mlp
    assert isinstance(moe, Moe)
    assert moe.groups is not None
    for change in (
        {"correction": None},
        {"groups": None},
        {"groups": replace(moe.groups, num_best=1)},
        {"groups": replace(moe.groups, top_k=1)},
        {"top_k": moe.top_k + 1},
    ):
        wrong: Any = change
        layers = tuple(
            replace(layer, mlp=replace(layer.mlp, **wrong)) if isinstance(layer.mlp, Moe) else layer
            for layer in recipe.layers
        )
        with pytest.raises(Unreadable, match="other experts are chosen"):
            require_same(replace(recipe, layers=layers), model)


def test_in_float32_a_recipe_must_agree_but_for_rounding() -> None:
    require_near(EXACT + 1e-3 * NOISE, EXACT, EXACT, torch.float32)
    with pytest.raises(Unreadable, match="the executor's relative error is"):
        require_near(EXACT + 0.1 * NOISE, EXACT, EXACT, torch.float32)


def test_an_executor_of_wider_numbers_than_transformers_has_no_share_in_its_errors() -> None:
    native = (EXACT + NOISE).bfloat16()
    require_near(EXACT + 1e-3 * NOISE, native, EXACT, torch.float32)
    with pytest.raises(Unreadable, match="the executor's relative error is"):
        require_near(EXACT + 0.1 * NOISE, native, EXACT, torch.float32)
