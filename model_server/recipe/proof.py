"""Proof that a recipe is right: of the class, of the parameters, of the loaded weights.

read_recipe:        config -> the recipe, proven by the next two
require_same:       a narrow model's logits in float32, all its weights random
require_used_once:  every parameter of the real model has its place, once
require_choices:    the experts that transformers chooses, in a narrow model and of loaded weights
require_near:       loaded weights: nearly as close to float32 as transformers itself
"""

from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from model_server.errors import ModelRefused
from model_server.recipe.dense_torch import DenseTorch, Memory, angles_of, route
from model_server.recipe.reader import read
from model_server.recipe.recipe import Moe, Recipe, Rows, Unreadable
from model_server.recipe.recording import choice_of, handed_to, native_logits
from model_server.recipe.resolve import resolve
from model_server.recipe.small import parameters_of, randomise, saved_buffers, small_model
from model_server.zoo import build_empty, facts_of, quiet

# Root mean square of a difference over the spread of the logits, in a narrow model of so many
# layers or fewer; rounding adds up with the depth. The least wrong recipes known lie at 1e-4.
MAX_ERROR = 1e-5
_NUM_LAYERS = 16
# Where a class magnifies rounding, so much of what float32 and float64 differ by, but no more.
_MAX_NOISES = 2.0
_MAX_NOISE = 5e-5
# Of loaded weights: how far transformers itself may be from float32, by its dtype, and how much
# farther an executor may be.
MAX_ERRORS = {torch.float32: 1e-3, torch.float16: 0.05, torch.bfloat16: 0.15}
_MAX_RATIO = 1.3
_ROUNDING = 1e-4  # of float32, in a deep model
# Of the experts that transformers chooses, how many the recipe must choose, too, by the dtype of
# what they read: routers are computed in it by some classes.
_MIN_SHARES = {torch.float32: 0.999, torch.float16: 0.9, torch.bfloat16: 0.9}
# A ragged batch, longer than the windows of a narrow model; the last sequence ends at the last
# position of all.
_LENS = (23, 9, 1, 17)


def read_recipe(
    config: Any, *, trust_remote_code: bool, reaches: Collection[tuple[str, ...]] = ()
) -> Recipe:
    """The recipe of the model that transformers makes of this config, proven without its weights.

    reaches: numbers of the text's config, as paths, that the proof is to be longer than
    Raises Unreadable with the reason if there is none, ModelRefused if there is no such model.
    """
    if _attends_latently(config.get_text_config()):
        raise Unreadable("multi-head latent attention is not read")
    with quiet(), one_thread():
        small = small_model(config, trust_remote_code=trust_remote_code, reaches=reaches)
        try:
            recipe = read(small)
            require_same(recipe, small)
            model = build_empty(config, trust_remote_code=trust_remote_code).module
            recipe = resolve(recipe, small, model)
            require_used_once(recipe, model)
        except (Unreadable, ModelRefused):
            raise
        # What is taken for something that is known fails in every way there is.
        except Exception as error:
            raise Unreadable(
                f"what it computes cannot be read; trying failed with {type(error).__name__}:"
                f" {error}"
            ) from error
    return recipe


def _attends_latently(config: Any) -> bool:
    try:
        return bool(getattr(config, "kv_lora_rank", None))
    # Of a config whose layers have each another one.
    except RuntimeError:
        return True


@contextmanager
def one_thread() -> Iterator[None]:
    """A team of threads costs more than it brings to thousands of small products."""
    num_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(num_threads)


@torch.inference_mode()
def require_same(recipe: Recipe, model: Any) -> None:
    """`recipe` is the narrow `model`'s own, whose weights are replaced by other random ones.

    Raises Unreadable if their logits differ by more than float32 explains, at the first positions
    or at the last: what a model does to its queries far out is not seen before.
    """
    randomise(model, seed=1)
    generator = torch.Generator().manual_seed(2)
    vocab_size = model.config.get_text_config().vocab_size
    oracle = DenseTorch(recipe, parameters_of(model), angles_of(recipe, model))
    token_ids = torch.randint(0, vocab_size, (sum(_LENS),), generator=generator)
    context_len = facts_of(model).max_position_embeddings or 0
    starts = [0] * (len(_LENS) - 1) + [max(0, context_len - _LENS[-1])]
    with handed_to_experts(recipe, model) as handed:
        expected = [
            native_logits(model, ids, start)
            for ids, start in zip(token_ids.split(list(_LENS)), starts, strict=True)
        ]
    chosen = require_choices(recipe, handed, parameters_of(model))
    actual = _in_two_steps(oracle, token_ids, starts, chosen)
    most = MAX_ERROR * max(1, len(recipe.layers) / _NUM_LAYERS)
    for place, compared in (("", slice(-1)), (" at its last positions", slice(-1, None))):
        error = relative_error(torch.cat(actual[compared]), torch.cat(expected[compared]))
        if not error <= most:
            wide = DenseTorch(recipe, parameters_of(model), angles_of(recipe, model), torch.float64)
            exact = _in_two_steps(wide, token_ids, starts, chosen)
            noise = relative_error(torch.cat(actual[compared]), torch.cat(exact[compared]))
            most = max(most, _MAX_NOISES * min(noise, _MAX_NOISE))
        # Written so that NaN does not pass.
        if not error <= most:
            raise Unreadable(
                f"a narrow model computes something else{place} (relative error {error:.2g})"
            )


def _in_two_steps(
    oracle: DenseTorch,
    token_ids: Tensor,
    starts: Sequence[int],
    chosen: Mapping[int, Sequence[Tensor]],
) -> list[Tensor]:
    """Logits of each of the sequences, whose second half goes on from what the first left.

    chosen: the experts of each sequence's tokens, by layer
    """
    memories = [Memory(start) for start in starts]
    sequences = token_ids.split(list(_LENS))
    middles = [(length + 1) // 2 for length in _LENS]
    steps = []
    for parts in ([slice(each) for each in middles], [slice(each, None) for each in middles]):
        tokens = [ids[part] for ids, part in zip(sequences, parts, strict=True)]
        experts = {
            index: torch.cat([each[part] for each, part in zip(calls, parts, strict=True)])
            for index, calls in chosen.items()
        }
        lens = [len(ids) for ids in tokens]
        steps.append(oracle.logits(torch.cat(tokens), lens, memories, experts).split(lens))
    return [torch.cat(parts) for parts in zip(*steps, strict=True)]


def require_used_once(recipe: Recipe, model: Any) -> None:
    """Raise Unreadable if a parameter or saved buffer of the model is not used exactly once.

    Rows of a merged weight must cover it; a tied embedding counts once. What belongs to no text,
    as an eye does, is not looked at.
    """
    saved = dict(model.named_parameters()) | saved_buffers(model)
    ends: dict[str, int] = {}
    runs: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for use in recipe.uses():
        num_rows = ends[use.name] = saved[use.name].shape[use.axis]
        rows = use.rows or Rows(0, 1, num_rows, num_rows)
        starts = range(rows.start, rows.start + rows.blocks * rows.stride, rows.stride)
        runs[use.name] += [(start, start + rows.used) for start in starts]
    for name, used in runs.items():
        edges = [0, *(edge for run in sorted(used) for edge in run), ends[name]]
        if edges[::2] != edges[1::2]:
            raise Unreadable(f"{name} is not used exactly once")
    # Of a model that also sees or hears, the part below the embedding's parent is for text.
    is_text = model.config.get_text_config() is model.config
    prefix = "" if is_text else recipe.embedding.rpartition(".")[0].rpartition(".")[0]
    unused = [name for name in saved if name not in runs and name.startswith(prefix)]
    if unused:
        raise Unreadable(f"what its weights do is not known: {', '.join(unused[:3])}")


@contextmanager
def handed_to_experts(
    recipe: Recipe, model: nn.Module
) -> Iterator[dict[int, list[tuple[Any, ...]]]]:
    """What the experts of each layer that has some are handed from now on, call by call."""
    with ExitStack() as stack:
        yield {
            index: stack.enter_context(handed_to(model.get_submodule(layer.mlp.module)))
            for index, layer in enumerate(recipe.layers)
            if isinstance(layer.mlp, Moe)
        }


def require_choices(
    recipe: Recipe,
    handed: Mapping[int, Sequence[tuple[Any, ...]]],
    parameters: Mapping[str, Tensor],
) -> dict[int, list[Tensor]]:
    """The experts [num_tokens, top_k] that transformers chose in each layer, call by call.

    Of scores that are nearly equal rounding decides, and what other experts compute is far: so the
    choice is compared here, on what the class's own experts read, and logits with the same experts.
    Raises Unreadable if the recipe chooses others more often than rounding explains.
    """
    chosen: dict[int, list[Tensor]] = {}
    num_shared = 0
    least = 0.0
    for index, calls in handed.items():
        moe = recipe.layers[index].mlp
        if not isinstance(moe, Moe):
            raise AssertionError("a layer without experts was listened to")
        chosen[index] = [choice_of(arguments)[0] for arguments in calls]
        for (source, *_), experts in zip(calls, chosen[index], strict=True):
            own, _ = route(moe, source.float().flatten(0, -2), parameters)
            if own.shape == experts.shape:
                num_shared += int((own.unsqueeze(-1) == experts.unsqueeze(-2)).sum())
            least += _MIN_SHARES[source.dtype] * experts.numel()
    if num_shared < least:
        raise Unreadable("other experts are chosen")
    return chosen


def require_near(
    actual: Tensor,
    native: Tensor,
    exact: Tensor,
    dtype: torch.dtype,
    exact_of_chosen: Tensor | None = None,
) -> None:
    """Compare logits [num_tokens, vocab_size] of loaded weights, of some 20 tokens.

    actual: an executor's, which computes in `dtype`; native: transformers', in that or a narrower
    one; exact: DenseTorch's in float32; exact_of_chosen: the same of the experts that transformers
    chose, if there are any. Raises Unreadable if the executor is farther from exact than
    transformers by more than a little, or if transformers itself is far from it: then the recipe is
    wrong.
    """
    error = relative_error(actual, exact)
    native_error = relative_error(native, exact)
    least = relative_error(native, exact if exact_of_chosen is None else exact_of_chosen)
    if not least <= MAX_ERRORS[native.dtype]:
        raise Unreadable(f"the loaded weights give other logits (relative error {least:.2g})")
    most = max(_MAX_RATIO * native_error, _ROUNDING) if native.dtype == dtype else _ROUNDING
    if not error <= most:
        raise Unreadable(
            f"the executor's relative error is {error:.2g}, that of transformers {native_error:.2g}"
        )


def relative_error(actual: Tensor, expected: Tensor) -> float:
    """Root mean square of the difference over the spread of what is expected."""
    difference = actual.float() - expected.float()
    return float(difference.square().mean().sqrt() / expected.float().std())
