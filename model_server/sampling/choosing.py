"""The choice of one token for each row of a group, with the log-probabilities to report.

    CPU:   by native/sample.cpp          edits by torch and numpy
    CUDA:  by Triton's kernels           edits by Triton's kernels
    else, and what those do not know (typical decoding, alternatives to report): by torch

All choose the same tokens. Prompt tokens are scored here as well.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import torch
from torch import Tensor
from torch.nn import functional

from model_server.sampling.edits import Edits, TorchEdits
from model_server.sampling.filters import (
    CHUNK_LEN,
    Candidates,
    draw,
    exp_weights,
    mass_bits,
    prefix_candidates,
    top_ids,
    typical_candidates,
    whole_masses,
)
from model_server.sampling.plan import Group, Kind, Top
from native.library import NativeUnavailable, Threads, load_native
from proto.contract import TopToken


@dataclass(frozen=True, slots=True, eq=False)
class TopLogprobs:
    """Alternatives to the tokens of some rows."""

    top: Top
    token_ids: Tensor  # [num_top_rows, most that any of them wants]
    logprobs: Tensor  # the same


@dataclass(frozen=True, slots=True, eq=False)
class Choice:
    """A group's tokens."""

    tokens: Tensor  # [n] int64
    logprobs: Tensor  # [n] float64; NaN where no distribution can be made of the scores
    # [n] bool: the candidates did not suffice, and the other fields are invalid; None: they did
    short: Tensor | None
    tops: TopLogprobs | None


# Chooses the tokens of a group, from the scores of the whole step [num_rows, width], which it does
# not change, and the draws of its rows, [num_rows] float64; greedy groups need none.
Choose: TypeAlias = Callable[[Group, Tensor, Tensor], Choice]


def choose_by_torch(group: Group, scores: Tensor, uniforms: Tensor) -> Choice:
    """See Choose."""
    scores = take(scores, group.rows)
    if group.kind is Kind.GREEDY:
        return _choose_best(scores, group.top)
    uniforms = take(uniforms, group.rows)
    if group.kind is Kind.PLAIN:
        return _draw_from_all(scores / group.temperature, uniforms, group.top)
    if group.kind is Kind.TYPICAL:
        assert group.filters.typical_p is not None
        found = typical_candidates(
            scores, group.temperature, group.filters.typical_p, group.num_candidates
        )
    else:
        found = prefix_candidates(scores, group.temperature, group.filters, group.num_candidates)
    return _draw_from(found, scores.shape[-1], uniforms, group.top)


def first_argmax(scores: Tensor) -> Tensor:
    """The first index of each row's maximum, as torch.argmax does, in a quarter of the time: [n].

    The first chunk whose maximum is the row's holds the first such element.
    """
    chunks = scores.view(len(scores), -1, CHUNK_LEN)
    chunk = chunks.amax(-1).argmax(-1, keepdim=True)  # [n, 1]
    within = chunks.take_along_dim(chunk.unsqueeze(-1), 1).squeeze(1).argmax(-1)
    return chunk.squeeze(1) * CHUNK_LEN + within


def _choose_best(scores: Tensor, top: Top | None) -> Choice:
    tokens = first_argmax(scores)
    shares = torch.softmax(scores, -1).gather(-1, tokens.unsqueeze(-1)).squeeze(-1)
    return _of_whole_rows(scores, tokens, shares.double().log(), top)


def _draw_from_all(scaled: Tensor, uniforms: Tensor, top: Top | None) -> Choice:
    bits = mass_bits(scaled.shape[-1])
    log_weights = scaled - scaled.amax(-1, keepdim=True)
    tokens, totals = draw(whole_masses(exp_weights(log_weights), bits), uniforms)
    logprobs = _logprobs(log_weights, tokens.unsqueeze(-1), totals.unsqueeze(-1), bits)
    return _of_whole_rows(scaled, tokens, logprobs.squeeze(-1), top)


def _of_whole_rows(scores: Tensor, tokens: Tensor, logprobs: Tensor, top: Top | None) -> Choice:
    if top is None:
        return Choice(tokens, logprobs, None, None)
    whole = torch.log_softmax(take(scores, top.rows), -1)
    # A token among its own alternatives has the same number there, to the last bit.
    own = whole.gather(-1, take(tokens, top.rows).unsqueeze(-1)).squeeze(-1).double()
    logprobs = own if top.rows is None else logprobs.index_copy(0, top.rows, own)
    return Choice(tokens, logprobs, None, best_of(whole, top))


def _draw_from(found: Candidates, width: int, uniforms: Tensor, top: Top | None) -> Choice:
    bits = mass_bits(width)
    masses = whole_masses(exp_weights(found.log_weights) * found.kept, bits)
    places, totals = draw(masses, uniforms)
    places = places.unsqueeze(-1)
    totals = totals.unsqueeze(-1)
    tokens = places if found.token_ids is None else found.token_ids.gather(-1, places)
    logprobs = _logprobs(found.log_weights, places, totals, bits)
    tops = None
    if top is not None:
        log_total = (totals * 2.0**-bits).log()
        tops = best_of(_spread(found, log_total, width, top.rows), top)
    return Choice(tokens.squeeze(-1), logprobs.squeeze(-1), found.short, tops)


def _logprobs(log_weights: Tensor, places: Tensor, totals: Tensor, bits: int) -> Tensor:
    """Those of the chosen places [n, 1], as exact as those of alternatives, in float64."""
    log_total = (totals * 2.0**-bits).log()
    # The masses are rounded, so a token that takes them all can seem to take a little more.
    return (log_weights.gather(-1, places) - log_total).float().double().clamp_(max=0.0)


def _spread(found: Candidates, log_total: Tensor, width: int, rows: Tensor | None) -> Tensor:
    """Log-probabilities of all tokens, -inf where dropped, of some rows: [num_rows, width]."""
    logprobs = (found.log_weights - log_total).float().clamp_(max=0.0)
    logprobs.masked_fill_(~found.kept, -torch.inf)
    logprobs = take(logprobs, rows)
    if found.token_ids is None:
        return logprobs
    whole = torch.full((len(logprobs), width), -torch.inf, device=logprobs.device)
    return whole.scatter_(-1, take(found.token_ids, rows), logprobs)


def take(rows: Tensor, which: Tensor | None) -> Tensor:
    """The rows `which`, or all of them without a copy."""
    return rows if which is None else rows.index_select(0, which)


def padded_width(vocab_size: int) -> int:
    """Columns of a row of scores: the vocabulary, rounded up to whole chunks."""
    return -(-vocab_size // CHUNK_LEN) * CHUNK_LEN


def pad_rows(rows: Tensor) -> Tensor:
    """[n, vocab_size] with -inf up to whole chunks."""
    missing = padded_width(rows.shape[-1]) - rows.shape[-1]
    return functional.pad(rows, (0, missing), value=-torch.inf) if missing else rows


def top_logprobs(logprobs: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Ids and log-probabilities of the `count` best of each row, by logprob, then by id.

    logprobs: [n, width], width a multiple of CHUNK_LEN, -inf beyond the vocabulary. Filtered
    tokens have -inf too, and come last when fewer than `count` were left. Both [n, count].
    """
    ids = top_ids(logprobs, count)
    return ids, logprobs.gather(-1, ids)


def best_of(logprobs: Tensor, top: Top) -> TopLogprobs:
    """Alternatives among these log-probabilities [num_top_rows, width], see `top_logprobs`."""
    return TopLogprobs(top, *top_logprobs(logprobs, top.max_count))


_SOURCE = Path(__file__).parents[1] / "native" / "sample.cpp"


class _Sample(ctypes.Structure):
    """`struct Sample`, field by field."""

    _fields_ = (
        ("num_rows", ctypes.c_int64),
        ("width", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("scores", "rows", "uniforms", "temperature")),
        ("filters", ctypes.c_void_p * 3),
        ("tokens", ctypes.c_void_p),
        ("logprobs", ctypes.c_void_p),
        ("mass_bits", ctypes.c_int64),
    )


class NativeChooser:
    """Chooses the tokens that `choose_by_torch` does.

    threads: those that there are at present; None: the caller alone
    """

    def __init__(self, threads: Callable[[], Threads | None] = lambda: None) -> None:
        """Raises NativeUnavailable."""
        library = load_native(_SOURCE)
        library.tandem_sample_size.restype = ctypes.c_int64
        if library.tandem_sample_size() != ctypes.sizeof(_Sample):
            raise NativeUnavailable(f"{library._name} expects other structs than this version has")
        self._sample = library.tandem_sample
        self._sample.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p)
        self._sample.restype = ctypes.c_int32
        self._threads = threads

    def __call__(self, group: Group, scores: Tensor, uniforms: Tensor) -> Choice:
        """See `Choose`. Raises MemoryError."""
        if group.top is not None or group.filters.typical_p is not None:
            return choose_by_torch(group, scores, uniforms)
        num_rows = len(group.places)
        tokens = torch.empty(num_rows, dtype=torch.int64)
        logprobs = torch.empty(num_rows, dtype=torch.float64)
        sample = _Sample(
            num_rows=num_rows,
            width=scores.shape[-1],
            scores=scores.data_ptr(),
            rows=_address(group.rows),
            uniforms=None if group.kind is Kind.GREEDY else uniforms.data_ptr(),
            temperature=group.temperature.data_ptr(),
            filters=tuple(map(_address, group.filters.of_prefixes)),
            tokens=tokens.data_ptr(),
            logprobs=logprobs.data_ptr(),
            mass_bits=mass_bits(scores.shape[-1]),
        )
        threads = self._threads()
        each, team = (None, None) if threads is None else (threads.each, threads.team)
        if not self._sample(ctypes.addressof(sample), each, team):
            raise MemoryError(f"no memory to sample {num_rows} rows")
        return Choice(tokens, logprobs, None, None)


def _address(values: Tensor | None) -> int | None:
    return None if values is None else values.data_ptr()


_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SamplingWays:
    """What a Sampler is given."""

    choose: Choose
    edits: Edits


def sampling_ways(
    vocab_size: int,
    device: torch.device,
    max_rows: int,
    threads: Callable[[], Threads | None] = lambda: None,
) -> SamplingWays:
    """The ways of this device; max_rows: of a step; threads: see NativeChooser."""
    if device.type == "cuda":
        try:
            return by_kernels(vocab_size, device, max_rows)
        except ImportError as error:
            _log.warning("tokens are sampled by torch, which is slower: %s", error)
    choose: Choose = choose_by_torch
    if device.type == "cpu":
        try:
            choose = NativeChooser(threads)
        except NativeUnavailable as error:
            _log.warning("tokens are sampled by torch: %s", error)
    return SamplingWays(choose, TorchEdits(vocab_size, device))


def by_kernels(vocab_size: int, device: torch.device, max_rows: int) -> SamplingWays:
    """The ways of Triton's kernels, which a machine without CUDA need not have.

    Raises ImportError where Triton is missing.
    """
    from model_server.sampling.triton import (  # noqa: PLC0415 - Triton is optional
        TritonChooser,
        TritonEdits,
    )

    return SamplingWays(TritonChooser(device, max_rows), TritonEdits(vocab_size, device, max_rows))


# Prompt rows scored at once: 64 rows of 128 000 tokens are 33 MB in float32.
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True)
class PromptScore:
    """The log-probability of one prompt token, and the most likely tokens in its place.

    NaN where the model's logits hold NaN or +inf.
    """

    logprob: float
    top_tokens: tuple[TopToken, ...] = ()


def score_tokens(
    logits: Tensor, token_ids: Sequence[int], num_top_tokens: int = 0
) -> list[PromptScore]:
    """The score of token_ids[i] in row i of the model's logits, [num_tokens, vocab_size].

    num_top_tokens: alternatives to report beside each token, at most the vocabulary.
    """
    scores: list[PromptScore] = []
    count = min(num_top_tokens, logits.shape[-1])
    for start in range(0, len(token_ids), _ROWS_AT_ONCE):
        rows = logits[start : start + _ROWS_AT_ONCE]
        tokens = torch.tensor(token_ids[start : start + _ROWS_AT_ONCE], device=logits.device)
        scored = torch.log_softmax(rows, -1, dtype=torch.float32)
        logprobs = scored.gather(-1, tokens.unsqueeze(-1)).squeeze(-1).tolist()
        if count == 0:
            scores += map(PromptScore, logprobs)
            continue
        ids, values = top_logprobs(pad_rows(scored), count)
        for logprob, *top in zip(logprobs, ids.tolist(), values.tolist(), strict=True):
            scores.append(PromptScore(logprob, tuple(map(TopToken, *top))))
    return scores
