"""The choice of one token for each row of a group, with the log-probabilities to report.

    CPU:   by native/sample.cpp          edits by torch and numpy
    CUDA:  by Triton's kernels           edits by Triton's kernels
    else, and what those do not know (typical decoding, alternatives to report): by torch

All choose the same tokens. A token has one log-probability whatever way it was chosen or asked for:
that of the float32 scores in float64, rounded to float32. Prompt tokens are scored here as well.
"""

import ctypes
import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeAlias

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from model_server.sampling.edits import Edits, TorchEdits
from model_server.sampling.filters import (
    CHUNK_LEN,
    Candidates,
    draw,
    exp_weights,
    in_chunks,
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


# Rows whose weights are summed up at once: 64 rows of 128 000 tokens are 66 MB in float64.
_ROWS_AT_ONCE = 64


@dataclass(frozen=True, slots=True, eq=False)
class Distribution:
    """The log-probabilities of each row's scores, which are worked out where they are asked for."""

    scores: Tensor  # [n, width] float32, -inf where no token may be chosen
    top: Tensor  # [n, 1] float64, the largest score
    log_total: Tensor  # [n, 1] float64, of the weights e^(score - top)

    @classmethod
    def of(cls, scores: Tensor) -> "Distribution":
        """width: a multiple of CHUNK_LEN."""
        totals = [_log_totals(rows) for rows in scores.split(_ROWS_AT_ONCE)]
        tops = torch.cat([top for top, _ in totals])
        return cls(scores, tops, torch.cat([log_total for _, log_total in totals]))

    def among(self, rows: Tensor | None) -> "Distribution":
        """That of some rows; None: of all."""
        if rows is None:
            return self
        return Distribution(
            take(self.scores, rows), take(self.top, rows), take(self.log_total, rows)
        )

    def logprobs(self, token_ids: Tensor) -> Tensor:
        """Of tokens [n, k]: the same, float32. NaN where no distribution can be made of a row."""
        below = self.scores.gather(-1, token_ids).double() - self.top
        return (below - self.log_total).float() + 0.0  # no -0

    def logprobs_of_one(self, tokens: Tensor) -> Tensor:
        """Of one token [n] of each row: [n] float64, as `Choice` has them."""
        return self.logprobs(tokens.unsqueeze(-1)).squeeze(-1).double()

    def best(self, count: int) -> tuple[Tensor, Tensor]:
        """Ids and log-probabilities of the `count` best of each row, by score, then by id.

        Tokens that may not be chosen come last, when fewer than `count` may. Both [n, count].
        """
        ids = top_ids(self.scores, count)
        return ids, self.logprobs(ids)

    def best_for(self, top: Top) -> TopLogprobs:
        """The alternatives that some of the rows report."""
        return TopLogprobs(top, *self.among(top.rows).best(top.max_count))


def _log_totals(scores: Tensor) -> tuple[Tensor, Tensor]:
    """`top` and `log_total` of a Distribution.

    The largest weight, which is 1, stays out of the sum: beside it small ones would lose their
    digits, and with them a token that is all but certain. By chunks first: torch adds up a whole
    row in another order when it is alone. NaN beside a largest score that is infinite.
    """
    top, place = scores.max(-1, keepdim=True)
    top = top.double()
    weights = (scores.double() - top).exp_().scatter_(-1, place, 0.0)
    rest = in_chunks(weights).sum(-1).sum(-1, keepdim=True)
    return top, rest.log1p_() + (top - top)


def _choose_best(scores: Tensor, top: Top | None) -> Choice:
    return _reported(Distribution.of(scores), first_argmax(scores), top)


def _draw_from_all(scaled: Tensor, uniforms: Tensor, top: Top | None) -> Choice:
    log_weights = scaled - scaled.amax(-1, keepdim=True)
    masses = whole_masses(exp_weights(log_weights), mass_bits(scaled.shape[-1]))
    tokens, _ = draw(masses, uniforms)
    return _reported(Distribution.of(scaled), tokens, top)


def _reported(distribution: Distribution, tokens: Tensor, top: Top | None) -> Choice:
    tops = None if top is None else distribution.best_for(top)
    return Choice(tokens, distribution.logprobs_of_one(tokens), None, tops)


def _draw_from(found: Candidates, width: int, uniforms: Tensor, top: Top | None) -> Choice:
    masses = whole_masses(exp_weights(found.log_weights) * found.kept, mass_bits(width))
    places, totals = draw(masses, uniforms)
    left = Distribution.of(found.scores.masked_fill(~found.kept, -torch.inf))
    logprobs = left.logprobs_of_one(places).masked_fill_(totals.isnan(), torch.nan)
    tokens = places
    if found.token_ids is not None:
        tokens = found.token_ids.gather(-1, places.unsqueeze(-1)).squeeze(-1)
    tops = None if top is None else _spread(left, found.token_ids, width).best_for(top)
    return Choice(tokens, logprobs, found.short, tops)


def _spread(left: Distribution, token_ids: Tensor | None, width: int) -> Distribution:
    """That of candidates as one of the whole vocabulary."""
    if token_ids is None:
        return left
    scores = left.scores.new_full((len(left.scores), width), -torch.inf)
    return replace(left, scores=scores.scatter_(-1, token_ids, left.scores))


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
        # Not torch.empty, which lets go of the interpreter, and may wait long to have it again.
        tokens = torch.from_numpy(np.empty(num_rows, np.int64))
        logprobs = torch.from_numpy(np.empty(num_rows, np.float64))
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
        scored = Distribution.of(pad_rows(rows.float()))
        logprobs = scored.logprobs_of_one(tokens).tolist()
        if count == 0:
            scores += map(PromptScore, logprobs)
            continue
        ids, values = scored.best(count)
        for logprob, *top in zip(logprobs, ids.tolist(), values.tolist(), strict=True):
            scores.append(PromptScore(logprob, tuple(map(TopToken, *top))))
    return scores
