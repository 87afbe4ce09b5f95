"""The sampler: from a step's logits to one token for each row, with its log-probability.

    logits -> scores ................ -> groups ........ -> candidates -> draw -> log-probabilities
              watermark, bitmask, bias,  greedy, plain,     of filtered
              penalties; only rows       filtered           rows
              that need them

It knows requests by id, parameters and logits, neither model nor batch nor text. Nothing that a
row gets depends on the rows beside it: the draw is a function of (seed, position), sums are exact
or run in a fixed order, and a search that was too narrow for a row is repeated for that row alone.
So is a draw whose token was refused: the token's bit is cleared and another number is drawn, which
leaves the distribution of the tokens that are not refused. A step's results leave the device in one
transfer (and one more for each time that rows are repeated).

A mask comes before all else: bias and penalties change the order of the legal tokens, and filters
choose among them. A bias lowers a token and never takes it away, so bans leave a mask no emptier.
"""

from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import accumulate, cycle, pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from model_server.errors import InvalidStep
from model_server.sampling.choosing import (
    Choice,
    Choose,
    Distribution,
    TopLogprobs,
    choose_by_torch,
    pad_rows,
    padded_width,
    take,
)
from model_server.sampling.edits import (
    BITS_PER_WORD,
    DeviceMasks,
    Edits,
    Masks,
    TorchEdits,
    Watermark,
)
from model_server.sampling.plan import (
    RawRows,
    Rows,
    SamplingPlan,
    SamplingPlanner,
    SamplingRows,
    Top,
)
from model_server.staging import Arrival, PinnedStaging
from proto.contract import (
    LogprobParams,
    MaskEffect,
    SampledToken,
    SamplingParams,
    StopParams,
    TopToken,
)

Floats = npt.NDArray[np.float64]


@dataclass(slots=True, eq=False)
class Outcome:
    """Results by row of the step. Rows whose candidates did not suffice are overwritten later."""

    tokens: npt.NDArray[np.int64]
    logprobs: Floats
    failed: npt.NDArray[np.bool_]
    short: npt.NDArray[np.bool_]
    tops: dict[int, tuple[TopToken, ...]]

    def overwrite(self, rows: npt.NDArray[np.int64], other: "Outcome") -> None:
        """Row i of `other` is row rows[i] of this one."""
        self.tokens[rows] = other.tokens
        self.logprobs[rows] = other.logprobs
        self.failed[rows] = other.failed
        self.short[rows] = other.short
        self.tops |= {int(rows[row]): tokens for row, tokens in other.tops.items()}


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeInFlight:
    """The results of a step's rows, in their order, while the device may compute them still.

    tokens:       [num_rows] int64, on the device
    may_be_short: whether the candidates of some row may turn out not to suffice
    """

    plan: SamplingPlan
    tokens: Tensor
    may_be_short: bool
    _parts: tuple[Tensor, ...]
    _tops: tuple[TopLogprobs, ...]
    _arrival: Arrival | None  # None: the parts are on the host

    @classmethod
    def begin(
        cls,
        plan: SamplingPlan,
        choices: Sequence[Choice],
        logits: Tensor,
        staging: PinnedStaging,
    ) -> "OutcomeInFlight":
        """Begin to copy what was chosen, group by group."""
        tokens = _merge(plan, [choice.tokens for choice in choices])
        parts = [tokens, _merge(plan, [choice.logprobs for choice in choices])]
        may_be_short = any(choice.short is not None for choice in choices)
        if may_be_short:
            parts.append(_merge(plan, [_short(choice) for choice in choices]))
        tops = [choice.tops for choice in choices if choice.tops is not None]
        if plan.raw is not None:
            raw_logprobs, raw_tops = _score_raw(plan.raw, logits, tokens)
            parts.append(raw_logprobs)
            tops += raw_tops
        for found in tops:
            parts += [found.token_ids, found.logprobs]
        arrival = None
        if tokens.device.type != "cpu":
            arrival = staging.to_host(torch.cat([part.flatten().double() for part in parts]))
        return cls(plan, tokens, may_be_short, tuple(parts), tuple(tops), arrival)

    @property
    def has_arrived(self) -> bool:
        """Whether `wait` returns at once."""
        return self._arrival is None or self._arrival.has_arrived

    def wait(self) -> Outcome:
        """The results. This is the only wait for the device."""
        values = self._on_host()
        rest = values[2:]
        short = rest.pop(0) if self.may_be_short else np.zeros(len(values[0]), dtype=np.bool_)
        outcome = Outcome(
            tokens=values[0].astype(np.int64, copy=False),
            logprobs=values[1],
            failed=np.isnan(values[1]),
            short=short.astype(np.bool_, copy=False),
            tops={},
        )
        raw = self.plan.raw
        if raw is not None:
            outcome.logprobs[raw.places] = rest.pop(0)
        for index, found in enumerate(self._tops):
            _unpack(outcome, found.top, rest[2 * index], rest[2 * index + 1])
        return outcome

    def _on_host(self) -> list[npt.NDArray[Any]]:
        """The parts, which travel as one vector of float64."""
        if self._arrival is None:
            return [part.numpy() for part in self._parts]
        bounds = pairwise(accumulate((part.numel() for part in self._parts), initial=0))
        vector = self._arrival.array()
        return [
            vector[start:stop].reshape(part.shape)
            for (start, stop), part in zip(bounds, self._parts, strict=True)
        ]


def _short(choice: Choice) -> Tensor:
    if choice.short is not None:
        return choice.short
    return torch.zeros_like(choice.tokens, dtype=torch.bool)


def _merge(plan: SamplingPlan, columns: Sequence[Tensor]) -> Tensor:
    merged = columns[0] if len(columns) == 1 else torch.cat(list(columns))
    return take(merged, plan.order)


def _score_raw(raw: RawRows, logits: Tensor, tokens: Tensor) -> tuple[Tensor, list[TopLogprobs]]:
    """The model's own log-probabilities of the chosen tokens, and of the most likely ones."""
    scored = Distribution.of(pad_rows(take(logits, raw.rows).float()))
    chosen = scored.logprobs_of_one(take(tokens, raw.rows))
    return chosen, [] if raw.top is None else [scored.best_for(raw.top)]


def _unpack(
    outcome: Outcome, top: Top, token_ids: npt.NDArray[Any], logprobs: npt.NDArray[Any]
) -> None:
    columns = (top.places.tolist(), top.counts, token_ids.astype(np.int64).tolist())
    for place, count, ids, values in zip(*columns, logprobs.tolist(), strict=True):
        outcome.tops[place] = tuple(map(TopToken, ids[:count], values[:count]))


@dataclass(frozen=True, slots=True)
class SampledRows:
    """The tokens that a step's rows sampled, in the order of the call.

    errors:  row index -> reason. Such a row has drawn nothing: its token id is 0, its logprob NaN,
             and it has no top tokens.
    mask_effects: by row, see `mask_effects`
    redrawn: rows whose token is not the one that was launched, see `SampleInFlight.tokens`
    """

    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]
    top_tokens: tuple[tuple[TopToken, ...], ...]
    errors: Mapping[int, str]
    mask_effects: Mapping[int, MaskEffect] = field(default_factory=dict)
    redrawn: frozenset[int] = frozenset()

    def token(self, row: int) -> SampledToken:
        """What a row that did not fail has sampled."""
        return SampledToken(
            self.token_ids[row],
            self.logprobs[row],
            self.top_tokens[row],
            self.mask_effects.get(row),
        )


@dataclass(frozen=True, slots=True, eq=False)
class SampleInFlight:
    """Rows that are being sampled, and what to draw them again from."""

    plan: SamplingPlan
    logits: Tensor
    masks: Masks | None
    device_masks: DeviceMasks | None
    draws: Tensor
    outcome: OutcomeInFlight

    @property
    def tokens(self) -> Tensor:
        """[num_rows] int64, on the device: what the rows draw.

        Unless they draw again since their constraint refuses it or too few candidates were looked
        at; of a row that fails any number.
        """
        return self.outcome.tokens

    @property
    def is_ready(self) -> bool:
        """Whether the results have arrived."""
        return self.outcome.has_arrived


class Sampler:
    """Owns the sampling state of a shard's requests; its caller alone changes it.

    vocab_size:    width of the logits
    eos_token_ids: tokens that end a sequence of this model
    max_rows:      requests expected at once; more are taken, at the cost of a reallocation
    choose:        how a group's tokens are chosen, see `Choose`
    edits:         masks, biases and penalties, see `Edits`; None: by torch
    staging:       copies to and from the device; None: see `PinnedStaging`
    watermark_gamma, watermark_delta: see `Watermark`
    """

    def __init__(
        self,
        vocab_size: int,
        device: torch.device,
        eos_token_ids: tuple[int, ...],
        max_rows: int,
        *,
        choose: Choose = choose_by_torch,
        edits: Edits | None = None,
        staging: PinnedStaging | None = None,
        watermark_gamma: float = 0.5,
        watermark_delta: float = 2.0,
    ) -> None:
        self._vocab_size = vocab_size
        self._device = device
        self._choose = choose
        self._width = padded_width(vocab_size)
        self._rows = SamplingRows(vocab_size, eos_token_ids, max_rows)
        self._edits = edits or TorchEdits(vocab_size, device)
        self._staging = staging or PinnedStaging(device)
        self._watermark = Watermark(vocab_size, device, watermark_gamma, watermark_delta)
        self._planner = SamplingPlanner(
            self._rows, self._staging, self._width, by_torch=choose is choose_by_torch
        )
        self._plan: SamplingPlan | None = None
        self._plan_key: tuple[object, ...] = ()
        self._scratch = self._new_scratch(max_rows)
        self._no_draws = torch.zeros(0, dtype=torch.float64, device=device)

    def reserve(self, num_rows: int, max_len: int) -> None:
        """Hold the device's memory for so many requests, of sequences of up to so many tokens.

        More requests and longer sequences are taken, at the cost of an allocation. On the host
        memory is taken as requests come.
        """
        if self._device.type == "cpu":
            return
        if num_rows > len(self._scratch):
            self._scratch = self._new_scratch(num_rows)
        self._edits.history.reserve(num_rows, max_len)

    def add(
        self,
        request_id: int,
        sampling: SamplingParams,
        stop: StopParams,
        logprobs: LogprobParams,
        token_ids: Sequence[int],
        prompt_len: int,
    ) -> None:
        """Add a request. token_ids: its prompt and, after a preemption, its output so far.

        Raises InvalidStep for a bias out of range and for an id that is held already.
        """
        row = self._rows.add(request_id, sampling, stop, logprobs, len(token_ids), prompt_len)
        if sampling.watermark:
            self._rows.table["previous_token"][row] = token_ids[-1]
        if not self._rows.table["is_penalised"][row]:
            return
        try:
            self._rows.table["slot"][row] = self._edits.history.open(token_ids, prompt_len)
        except InvalidStep as error:
            self._rows.remove(request_id)
            raise InvalidStep(f"request {request_id}: {error}") from None

    def remove(self, request_id: int) -> None:
        """Remove a request. Raises InvalidStep for an unknown id."""
        row = self._rows.remove(request_id)
        if self._rows.table["is_penalised"][row]:
            self._edits.history.close(int(self._rows.table["slot"][row]))

    def extend(self, request_id: int, token_ids: Sequence[int]) -> None:
        """Append forced tokens to a request's history. Raises InvalidStep."""
        row = self._rows.row_of(request_id)
        entry = self._rows.table[row]
        if entry["is_penalised"]:
            self._edits.history.extend(int(entry["slot"]), int(entry["position"]), token_ids)
        self._rows.table["previous_token"][row] = token_ids[-1]
        self._rows.table["position"][row] += len(token_ids)

    def sample(
        self, request_ids: Sequence[int], logits: Tensor, masks: Masks | None = None
    ) -> SampledRows:
        """Sample one token for each request and append it to the request's history.

        logits: [num_rows, vocab_size] of any float dtype, row i for request_ids[i]; not changed
        masks:  of those rows that have one; what they drew is appended once it is accepted

        Raises InvalidStep for an unknown id and for shapes that contradict each other.
        """
        if len(request_ids) == 0:
            self._check_shapes(0, logits, masks)
            return SampledRows((), (), (), {})
        return self.collect(self.launch(request_ids, logits, masks))

    def launch(
        self, request_ids: Sequence[int], logits: Tensor, masks: Masks | None = None
    ) -> SampleInFlight:
        """As `sample`, for at least one request: the results are not waited for.

        They are to be collected before the next launch for one of these requests.
        """
        self._check_shapes(len(request_ids), logits, masks)
        plan = self._plan_for(request_ids, None if masks is None else masks.places)
        on_device = None
        if masks is not None:
            on_device = DeviceMasks.of(masks.places, masks.words, len(request_ids), self._staging)
        draws = self._uniforms(plan)
        outcome = self._begin(plan, logits, on_device, draws)
        return SampleInFlight(plan, logits, masks, on_device, draws, outcome)

    def collect(self, sample: SampleInFlight) -> SampledRows:
        """Wait for the results; once."""
        plan = sample.plan
        logits = sample.logits
        masks = sample.masks
        outcome = sample.outcome.wait()
        redrawn: frozenset[int] = frozenset()
        if masks is not None or outcome.short.any():
            launched = outcome.tokens.copy()
            self._redraw_short(plan, outcome, logits, sample.device_masks, sample.draws)
            if masks is not None:
                self._redraw_refused(plan, outcome, logits, masks)
            redrawn = frozenset((launched != outcome.tokens).nonzero()[0].tolist())
        self._append(plan, outcome)
        return self._answer(
            outcome,
            logits,
            masked=() if masks is None else masks.places.tolist(),
            redrawn=redrawn,
            effects={} if masks is None else mask_effects(plan, masks, outcome.tops),
        )

    def _redraw_refused(
        self, plan: SamplingPlan, outcome: Outcome, logits: Tensor, masks: Masks
    ) -> None:
        """Check the masked rows' tokens, and sample again where one is refused."""
        places = masks.places
        num_refused = np.zeros(len(places), dtype=np.int64)
        indices: Sequence[int] = range(len(places))
        while True:
            refused = [
                index
                for index in indices
                if not outcome.failed[places[index]]
                and not masks.accepts(index, int(outcome.tokens[places[index]]))
            ]
            if not refused:
                return
            num_refused[refused] += 1
            rows = places[refused]
            everything = np.arange(len(rows))
            again = self._planner.plan(plan.rows[rows], masked=everything)
            words = masks.words[torch.tensor(refused)]
            on_device = DeviceMasks.of(everything, words, len(rows), self._staging)
            draws = self._to_device(self._rows.redraws(again.rows, num_refused[refused]))
            outcome.overwrite(
                rows, self._draw(again, logits[self._to_device(rows)], on_device, draws)
            )
            indices = refused

    def _draw(
        self, plan: SamplingPlan, logits: Tensor, masks: DeviceMasks | None, draws: Tensor
    ) -> Outcome:
        """The tokens that the rows sample with `draws`, [num_rows] float64; appends nothing."""
        outcome = self._begin(plan, logits, masks, draws).wait()
        self._redraw_short(plan, outcome, logits, masks, draws)
        return outcome

    def _redraw_short(
        self,
        plan: SamplingPlan,
        outcome: Outcome,
        logits: Tensor,
        masks: DeviceMasks | None,
        draws: Tensor,
    ) -> None:
        """Draw again, with the same numbers, where the candidates did not suffice."""
        (short,) = outcome.short.nonzero()
        if len(short) == 0:
            return
        among = None if masks is None else masks.among(short, self._staging)
        masked = None if among is None else among.places
        again = self._planner.plan(plan.rows[short], masked=masked, complete=True)
        rows = self._to_device(short)
        arriving = self._begin(again, logits[rows], among, draws[rows])
        outcome.overwrite(short, arriving.wait())

    def _plan_for(self, request_ids: Sequence[int], masked: Rows | None) -> SamplingPlan:
        which = None if masked is None else masked.tobytes()
        key = (self._rows.version, which, tuple(request_ids))
        if self._plan is not None and key == self._plan_key and self._holds(self._plan):
            return self._plan
        rows = self._rows.rows_of(request_ids)
        self._plan = self._planner.plan(rows, masked=masked)
        self._plan_key = key
        return self._plan

    def _holds(self, plan: SamplingPlan) -> bool:
        """Whether no row has reached its minimum length since the plan was made."""
        if plan.bias is None:
            return True
        return bool((self._rows.may_not_end(plan.rows) == plan.may_not_end).all())

    def _begin(
        self, plan: SamplingPlan, logits: Tensor, masks: DeviceMasks | None, draws: Tensor
    ) -> OutcomeInFlight:
        if not self._are_scores(logits) or plan.edited.is_most:
            scores = self._copied(logits)
            self._edit(scores, plan, masks)
            choices = [self._choose(group, scores, draws) for group in plan.groups]
        else:
            with _restored(logits, plan.edited.rows):
                self._edit(logits, plan, masks)
                choices = [self._choose(group, logits, draws) for group in plan.groups]
        return OutcomeInFlight.begin(plan, choices, logits, self._staging)

    def _uniforms(self, plan: SamplingPlan) -> Tensor:
        """The draws of the step's rows, [num_rows] float64; none if no row draws."""
        if not plan.is_drawn:
            return self._no_draws
        return self._to_device(self._rows.uniforms(plan.rows))

    def _are_scores(self, logits: Tensor) -> bool:
        """Whether the logits have the shape and type of scores: [num_rows, width] float32."""
        fits = logits.dtype == torch.float32 and logits.shape[-1] == self._width
        return fits and logits.is_contiguous()

    def _copied(self, logits: Tensor) -> Tensor:
        """The logits as scores of their own."""
        num_rows = len(logits)
        if num_rows > len(self._scratch):
            self._scratch = self._new_scratch(num_rows)
        scores = self._scratch[:num_rows]
        scores[:, : self._vocab_size].copy_(logits)
        return scores

    def _edit(self, scores: Tensor, plan: SamplingPlan, masks: DeviceMasks | None) -> None:
        """Apply watermark, bias, penalties and masks, in place."""
        if plan.watermarked is not None:
            previous = self._rows.table["previous_token"][plan.watermarked.rows_on_host]
            self._watermark.apply(scores, plan.watermarked.rows, previous)
        if masks is not None:
            self._edits.mask(scores, masks)
        if plan.bias is not None:
            self._edits.add_bias(scores, plan.bias)
        if plan.penalties is not None:
            used_len = int(self._rows.table["position"][plan.penalties.rows_on_host].max())
            self._edits.penalise(scores, plan.penalties, used_len)

    def _append(self, plan: SamplingPlan, outcome: Outcome) -> None:
        drawn = ~outcome.failed
        if plan.penalties is not None:
            places = plan.penalties.places[drawn[plan.penalties.places]]
            entries = self._rows.table[plan.rows[places]]
            if len(places) > 0:
                self._edits.history.append(
                    entries["slot"], entries["position"], outcome.tokens[places]
                )
        if plan.watermarked is not None:
            places = plan.watermarked.places[drawn[plan.watermarked.places]]
            self._rows.table["previous_token"][plan.rows[places]] = outcome.tokens[places]
        self._rows.table["position"][plan.rows[drawn]] += 1

    def _answer(
        self,
        outcome: Outcome,
        logits: Tensor,
        *,
        masked: Collection[int],
        redrawn: frozenset[int],
        effects: Mapping[int, MaskEffect],
    ) -> SampledRows:
        failed = outcome.failed.nonzero()[0].tolist()
        for row in failed:
            outcome.tokens[row] = 0
            outcome.logprobs[row] = np.nan
            outcome.tops.pop(row, None)
        num_rows = len(outcome.tokens)
        return SampledRows(
            token_ids=tuple(outcome.tokens.tolist()),
            logprobs=tuple(outcome.logprobs.tolist()),
            top_tokens=(
                tuple([outcome.tops.get(row, ()) for row in range(num_rows)])
                if outcome.tops
                else ((),) * num_rows
            ),
            errors={row: _reason(logits[row], is_masked=row in masked) for row in failed},
            mask_effects=effects,
            redrawn=redrawn,
        )

    def _check_shapes(self, num_rows: int, logits: Tensor, masks: Masks | None) -> None:
        expected = (num_rows, self._vocab_size)
        if logits.shape != expected:
            raise InvalidStep(f"logits have the shape {tuple(logits.shape)}, not {expected}")
        if masks is None:
            return
        words = (len(masks.places), -(-self._vocab_size // BITS_PER_WORD))
        if masks.words.shape != words or masks.words.dtype != torch.int32:
            raise InvalidStep(
                f"the masks are {tuple(masks.words.shape)} {masks.words.dtype}, not {words}"
                " torch.int32"
            )

    def _to_device(self, values: npt.NDArray[np.generic]) -> Tensor:
        return self._staging.to_device(values)

    def _new_scratch(self, num_rows: int) -> Tensor:
        """A buffer of scores; columns beyond the vocabulary are -inf and stay so."""
        return torch.full((num_rows, self._width), -torch.inf, device=self._device)


@contextmanager
def _restored(logits: Tensor, rows: Tensor | None) -> Iterator[None]:
    """Restore these rows at the end; None: none of them changes.

    So whoever has neither mask nor bias nor penalty pays nothing for those beside it who have.
    """
    if rows is None:
        yield
        return
    with torch.inference_mode():  # as the logits were made
        kept = logits.index_select(0, rows)
        try:
            yield
        finally:
            logits.index_copy_(0, rows, kept)


def _reason(logits: Tensor, *, is_masked: bool) -> str:
    """The reason why no token could be sampled from a row."""
    if logits.isnan().any():
        return "the model's logits hold NaN"
    if logits.isposinf().any():
        return "the model's logits hold +inf"
    if logits.isneginf().all():
        return "the model's logits are all -inf"
    if is_masked:
        return "no token may be chosen: the mask, bias and penalties leave none"
    return "no token may be chosen: bias, penalties and least length leave no finite score"


def mask_effects(
    plan: SamplingPlan, masks: Masks, tops: Mapping[int, tuple[TopToken, ...]]
) -> dict[int, MaskEffect]:
    """What a mask did to a row, for those that report the model's own log-probabilities.

    tops: the most probable tokens by row, the first one first
    """
    if plan.raw is None:
        return {}
    raw = frozenset(plan.raw.places.tolist())
    effects = {}
    for index, row in enumerate(masks.places.tolist()):
        if row in raw and tops.get(row):
            words = masks.words[index].numpy().view(np.uint32)
            effects[row] = _effect(words, tops[row][0].token_id)
    return effects


def _effect(words: np.ndarray[tuple[int], np.dtype[np.uint32]], favourite: int) -> MaskEffect:
    if int(np.bitwise_count(words).sum()) == 1:
        return MaskEffect.FORCED
    word, bit = divmod(favourite, BITS_PER_WORD)
    return MaskEffect.FREE if int(words[word]) >> bit & 1 else MaskEffect.STEERED


_EDITED = SamplingParams(
    logit_bias={0: 1.0}, repetition_penalty=1.1, presence_penalty=0.1, frequency_penalty=0.1
)


_KINDS = (
    _EDITED,
    replace(_EDITED, do_sample=True),
    replace(_EDITED, do_sample=True, top_k=8, top_p=0.9),
)


def rehearse(sampler: Sampler, vocab_size: int, device: torch.device, num_rows: int) -> None:
    """A step before the first real one, since a first launch compiles its kernel.

    Samples for at least `num_rows` requests of ids below 0, and removes them: one in three is
    greedy, one drawn from all tokens and one from filtered ones; all have a mask, a bias and
    penalties.
    """
    num_rows = max(num_rows, len(_KINDS))
    request_ids = range(-num_rows, 0)
    for request_id, sampling in zip(request_ids, cycle(_KINDS)):
        sampler.add(request_id, sampling, StopParams(max_new_tokens=1), LogprobParams(), (0,), 1)
    words = torch.full((num_rows, -(-vocab_size // BITS_PER_WORD)), -1, dtype=torch.int32)
    logits = torch.zeros(num_rows, vocab_size, device=device)
    sampler.sample(request_ids, logits, Masks(np.arange(num_rows), words))
    for request_id in request_ids:
        sampler.remove(request_id)
