"""The sequences that a shard holds between steps, and the part of a step that each computes.

    token_ids:  | computed_len: keys and values are in the pool | not computed yet |
    block_ids:  | cover at least the tokens that the next step computes            |

A sequence decodes once it has sampled here; from then on the tokens of its last generation are
uncomputed: one, or more where a constraint forced some. These are books: no tensor, no model, and
the runner is their only mutator.

Draft tokens may follow the last one in a step; those that are sampled become tokens. A sequence's
drafter guesses them from its own text: prompt lookup, or n-gram speculation.

    token_ids:  ... x a b | c d e f ... y x a b
                           draft: c d e f

A step computes the draft behind the sequence's last token, and samples at each of its positions
until a token is not the one that was guessed. Since a position's logits and its random draw do not
depend on how many tokens a step computes, the output is the same as without drafts; only the number
of steps is not. Tokens that a constraint forces are not sampled, and may be what was guessed, too.
(Saxena, prompt lookup decoding, 2023; verification as Leviathan et al., arXiv:2211.17192, of a
draft without probabilities.)
"""

from array import array
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from math import isnan
from typing import NamedTuple, TypeAlias

from torch import Tensor

from model_server.engine.adapters import AdapterBook
from model_server.engine.states import SequenceStates
from model_server.errors import InvalidStep
from model_server.images import Gallery, SequenceImages
from model_server.sampling.choosing import PromptScore, score_tokens
from model_server.step import SequenceStep, StateStep
from proto.contract import FinishReason, LogprobParams, NewSequence, RunningUpdate, StopParams

_FEW_ROWS = 4
# Of the last places where the last two tokens came so many are compared, by so many tokens.
_MAX_PLACES = 32
_MAX_MATCH_LEN = 16


@dataclass(frozen=True, slots=True)
class DraftRules:
    """What a step asks of drafts.

    min_match_len: so many tokens at least came before, and were followed by the guess
    end_token_ids: those of the model, none of which is guessed
    is_for_constrained: whether sequences with a constraint have drafts
    """

    min_match_len: int = 2
    end_token_ids: Collection[int] = ()
    is_for_constrained: bool = True

    @classmethod
    def of_rows(cls, num_rows: int, end_token_ids: Collection[int]) -> "DraftRules":
        """For a step of so many sequences that decode.

        One of few rows waits for the weights, and a draft costs it a tenth or two. One of more
        computes for longer than that, so that only a likely draft is worth its row. The masks
        behind accepted drafts are made while all rows wait, so that they have to be few.
        """
        return cls(
            min_match_len=2 if num_rows < _FEW_ROWS else 8,
            end_token_ids=end_token_ids,
            is_for_constrained=num_rows <= _FEW_ROWS,
        )


class Drafter:
    """The pairs of tokens in one sequence, and how well its last drafts went.

    A draft is as long as the last one was right and one token longer, and twice as long after one
    that was right to its end: so text that does not repeat itself costs a row a step at most.

    How likely a guess is depends on the match. Its first token is right, in prose and code of
    32 000 kinds of tokens, after 2 equal ones in 0.2 to 0.5 of the cases, after 4 to 7 in 0.55 to
    0.7, and after 8 or more in 0.7 to 0.99, the last where a file is written anew with changes.
    """

    def __init__(self) -> None:
        # Where the text went on after the last time that a pair came, and the time before that.
        self._last_place: dict[tuple[int, int], int] = {}
        self._places_before: list[int | None] = [None, None]
        self._draft_len = 1

    def draft(self, token_ids: Sequence[int], most: int, min_match_len: int = 2) -> tuple[int, ...]:
        """The guessed successors of `token_ids`, at most so many; see `DraftRules`."""
        self._index(token_ids)
        place, match_len = self._best_place(token_ids)
        if match_len < min_match_len:
            return ()
        draft_len = min(most, self._draft_len)
        period = len(token_ids) - place
        # Past the end of what is known the guess goes on as it began.
        return tuple([token_ids[place + offset % period] for offset in range(draft_len)])

    def note(self, num_drafts: int, num_accepted: int) -> None:
        """A draft of so many tokens was right in so many of them."""
        is_right = num_accepted == num_drafts
        self._draft_len = 2 * num_drafts if is_right else num_accepted + 1

    def _index(self, token_ids: Sequence[int]) -> None:
        """Index the pairs that have a successor and are not indexed yet."""
        places = self._places_before
        for place in range(len(places), len(token_ids)):
            pair = token_ids[place - 2], token_ids[place - 1]
            places.append(self._last_place.get(pair))
            self._last_place[pair] = place

    def _best_place(self, token_ids: Sequence[int]) -> tuple[int, int]:
        """Where the text went on after the longest match with its end, and the match's length.

        The latest of several; a length of 0 where there is none.
        """
        best = 0
        best_len = 0
        if len(token_ids) < 2:
            return best, best_len
        place = self._last_place.get((token_ids[-2], token_ids[-1]))
        for _ in range(_MAX_PLACES):
            if place is None or best_len == _MAX_MATCH_LEN:
                break
            match_len = _match_len(token_ids, place)
            if match_len > best_len:
                best = place
                best_len = match_len
            place = self._places_before[place]
        return best, best_len


def _match_len(token_ids: Sequence[int], place: int) -> int:
    """Tokens before `place` that equal the last ones, of which two do."""
    most = min(_MAX_MATCH_LEN, place)
    for match_len in range(2, most):
        if token_ids[place - 1 - match_len] != token_ids[-1 - match_len]:
            return match_len
    return most


@dataclass(slots=True, eq=False)
class SequenceState:
    """One request's tokens and blocks, and its slots of states, where the model has any.

    `next_score` is that of the first uncomputed token, which the last step's logits gave already;
    it is reported with that token's chunk.
    """

    request_id: int
    token_ids: list[int]
    prompt_len: int
    computed_len: int
    block_ids: "array[int]"
    stop: StopParams
    logprobs: LogprobParams
    pause_len: int | None = None
    max_drafts: int = 0
    states: SequenceStates | None = None
    adapter_id: int | None = None
    images: SequenceImages | None = None
    is_constrained: bool = False
    is_decoding: bool = False
    has_ended: bool = False
    next_score: PromptScore | None = field(default=None, repr=False)
    _drafter: Drafter | None = field(default=None, repr=False)

    @classmethod
    def of(
        cls,
        new: NewSequence,
        states: SequenceStates | None = None,
        images: SequenceImages | None = None,
    ) -> "SequenceState":
        """The state of a new request."""
        return cls(
            request_id=new.request_id,
            token_ids=list(new.token_ids),
            prompt_len=new.prompt_len,
            computed_len=new.cached_len,
            block_ids=array("i", new.block_ids),
            stop=new.stop,
            logprobs=new.logprobs,
            pause_len=new.pause_len,
            max_drafts=new.max_drafts,
            states=states,
            adapter_id=new.adapter_id,
            images=images,
            is_constrained=new.constraint is not None,
        )

    def takes_drafts(self, rules: DraftRules) -> bool:
        """Whether guesses may follow its last token in a step, and be taken back."""
        if self.max_drafts == 0 or (self.is_constrained and not rules.is_for_constrained):
            return False
        return self.states is None or self.states.can_draft

    def scored(self, chunk_len: int) -> range:
        """Positions of the prompt tokens that the next chunk's logits score."""
        if not self.logprobs.prompt:
            return range(0)
        # The logits of a token score the one that follows it.
        first = max(self.computed_len + 1, self.logprobs.prompt_from)
        return range(first, min(self.computed_len + 1 + chunk_len, self.prompt_len))

    @property
    def num_left(self) -> int:
        """Tokens that it may still get."""
        most = self.stop.max_new_tokens
        pause_len = self.pause_len
        if pause_len is not None:
            most = min(most, pause_len)
        return self.prompt_len + most - len(self.token_ids)

    def draft(self, most: int, rules: DraftRules) -> tuple[int, ...]:
        """Guesses of its next tokens, at most so many; none of them ends it."""
        if self._drafter is None:
            self._drafter = Drafter()
        # Behind an accepted draft there is always one more token.
        most = min(most, self.max_drafts, self.num_left - 1)
        drafts = self._drafter.draft(self.token_ids, most, rules.min_match_len)
        ends = {*self.stop.stop_token_ids, *(() if self.stop.ignore_eos else rules.end_token_ids)}
        return tuple(takewhile(lambda token_id: token_id not in ends, drafts))

    def take_drafts(self, num_drafts: int, num_accepted: int) -> None:
        """A step computed drafts behind the last token; some of them are tokens now."""
        assert self._drafter is not None
        self._drafter.note(num_drafts, num_accepted)
        self.computed_len += num_accepted

    def retry_sample(self, scores: Sequence[PromptScore]) -> None:
        """No token was sampled from the last logits: a later step computes them again.

        scores: what was reported with its chunk; its own is reported with it again
        """
        self.computed_len -= 1
        self.is_decoding = True
        if scores and self.computed_len < self.prompt_len:
            self.next_score = scores[-1]

    def finish_reason(
        self, eos_token_ids: Collection[int], *, is_over: bool = False
    ) -> FinishReason | None:
        """The finish reason after the last token, or None when the sequence goes on.

        is_over: its constraint lets nothing follow
        """
        last = self.token_ids[-1]
        if last in eos_token_ids and not self.stop.ignore_eos:
            return FinishReason.EOS
        if last in self.stop.stop_token_ids:
            return FinishReason.STOP_TOKEN
        if is_over:
            return FinishReason.CONSTRAINT_COMPLETE
        if len(self.token_ids) - self.prompt_len >= self.stop.max_new_tokens:
            return FinishReason.LENGTH
        pause_len = self.pause_len
        if pause_len is not None and len(self.token_ids) - self.prompt_len >= pause_len:
            return FinishReason.PAUSED
        return None


class PlannedChunk(NamedTuple):
    """The part of a step that one sequence computes, planned before the sequence changes.

    `block_ids` are those that the sequence will have. `chunk_len` may be 0: it sits the step out.
    `samples`: the step ends with a new token of the sequence. `awaits`: its token is being drawn by
    the step before. `drafts`: guesses of what follows, computed and sampled behind the chunk's own
    tokens. `state`: None where the model has none. `num_repeated`: tokens before `start` that are
    computed again, since no state knows them. A tuple, as `SequenceStep` is.
    """

    sequence: SequenceState
    start: int
    chunk_len: int
    block_ids: "array[int]"
    num_logits: int
    samples: bool
    awaits: bool = False
    drafts: tuple[int, ...] = ()
    state: StateStep | None = None
    num_repeated: int = 0

    @classmethod
    def of(
        cls,
        sequence: SequenceState,
        update: RunningUpdate | None,
        block_size: int,
        rules: DraftRules = DraftRules(),  # noqa: B008 -- it is frozen
        *,
        before: "PlannedChunk | None" = None,
        before_is_late: bool = False,
    ) -> "PlannedChunk":
        """Raises InvalidStep when a prompt's chunk exceeds the tokens left, or any its blocks, and
        when no state stands where it begins.

        before:         the sequence's chunk in a step that has not ended; the sequence goes on
        before_is_late: that one samples nothing, and its last token is computed again
        """
        start = sequence.computed_len
        decodes = sequence.is_decoding
        if before is None and update is None and decodes and not sequence.logprobs.prompt:
            is_covered = start < len(sequence.block_ids) * block_size
            if is_covered and sequence.states is None and start + 1 == len(sequence.token_ids):
                # Nearly always: its last token, and nothing that is new.
                return cls(sequence, start, 1, sequence.block_ids, 1, True)
        draws = False
        if before is not None:
            start = before.start + before.chunk_len - before_is_late
            decodes = decodes or before.samples
            draws = before.samples and not before_is_late
        num_left = len(sequence.token_ids) + draws - start
        chunk_len = update.chunk_len if update is not None else None
        num_spare = 0
        if chunk_len is None:
            chunk_len = 1 if decodes else 0
        elif decodes and (before is None or sequence.is_constrained):
            # The step was planned before it was known how many tokens the last one forced.
            num_spare = max(0, chunk_len - num_left)
            chunk_len -= num_spare
        new_block_ids = update.block_ids if update is not None else ()
        block_ids = _covering(sequence, start, chunk_len, num_left, new_block_ids, block_size)
        samples = 0 < chunk_len == num_left
        num_logits = int(samples)
        drafts: tuple[int, ...] = ()
        if sequence.logprobs.prompt and (scored := sequence.scored(chunk_len)):
            num_logits = start + chunk_len - (scored.start - 1)
        elif num_spare and before is None and sequence.takes_drafts(rules):
            room_len = len(block_ids) * block_size - start - chunk_len
            drafts = sequence.draft(min(num_spare, room_len), rules)
            num_logits = 1 + len(drafts)
        state = None
        num_repeated = 0
        if sequence.states is not None and chunk_len:
            state = sequence.states.step(
                start,
                chunk_len,
                None if before is None else before.state,
                before_is_late=before_is_late,
                num_drafts=len(drafts),
            )
            if before is None:
                num_repeated = sequence.states.num_repeated(start)
        return cls(
            sequence,
            start,
            chunk_len,
            block_ids,
            num_logits,
            samples,
            awaits=draws and samples,
            drafts=drafts,
            state=state,
            num_repeated=num_repeated,
        )

    def settled(self) -> "PlannedChunk":
        """This chunk once the step before it has ended and its sequence goes on.

        It samples nothing if that step's token forced others after it.
        """
        is_last_token = self.start + self.chunk_len == len(self.sequence.token_ids)
        samples = self.samples and is_last_token
        return self._replace(num_logits=int(samples), samples=samples, awaits=False)

    def num_accepted(self, token_ids: Sequence[int]) -> int:
        """The drafts that are among the tokens the step brought; the last of these is not one."""
        num_accepted = 0
        for token_id, draft in zip(token_ids[:-1], self.drafts, strict=False):
            if token_id != draft:
                break
            num_accepted += 1
        return num_accepted

    @property
    def may_be_late(self) -> bool:
        """Whether the router takes it that the chunk samples in a later step."""
        return self.samples and self.sequence.is_constrained

    @property
    def can_repeat(self) -> bool:
        """Whether its last token can be computed again by a later step."""
        states = self.sequence.states
        if states is None or self.state is None:
            return True
        return self.num_repeated == 0 and states.can_repeat(self.state, self.chunk_len)

    @property
    def is_decode(self) -> bool:
        """Whether it is the sequence's last token and nothing else, as nearly every chunk is."""
        sequence, _, chunk_len, _, num_logits, samples, awaits, drafts, state, _ = self
        return (
            chunk_len == 1 == num_logits
            and samples
            and not (awaits or drafts)
            and state is None
            and sequence.adapter_id is None
            and sequence.images is None
        )

    @property
    def is_last(self) -> bool:
        """Whether the sequence ends with this chunk, whatever its token is."""
        return self.samples and self.sequence.num_left <= 1

    @property
    def is_to_look(self) -> bool:
        """Whether there are images that `see` would look at."""
        images = self.sequence.images
        return images is not None and images.has_unseen(
            self.start - self.num_repeated, self.start + self.chunk_len
        )

    def see(self, gallery: Gallery) -> None:
        """Look at the images of which its tokens hold something. Raises as `SequenceImages.see`."""
        assert self.sequence.images is not None
        self.sequence.images.see(
            self.start - self.num_repeated, self.start + self.chunk_len, gallery
        )

    def step(self, adapters: AdapterBook) -> SequenceStep:
        """The chunk as an input of `StepInputs.build`; a token that it awaits is 0.

        Raises NoAdapter.
        """
        adapter_id = self.sequence.adapter_id
        adapter = None if adapter_id is None else adapters.place_of(adapter_id)
        images = self.sequence.images
        start = self.start - self.num_repeated
        token_ids = self.sequence.token_ids[start : self.start + self.chunk_len]
        if self.awaits or self.drafts:
            token_ids = [*token_ids, *(self.drafts or (0,))]
        part = None if images is None else images.part(start, start + len(token_ids))
        return SequenceStep(
            token_ids, start, self.block_ids, self.num_logits, self.state, adapter, part
        )


def _covering(
    sequence: SequenceState,
    start: int,
    chunk_len: int,
    num_left: int,
    new_block_ids: tuple[int, ...],
    block_size: int,
) -> "array[int]":
    """The sequence's blocks with the new ones. Raises InvalidStep when they, or the tokens that are
    left, are too few for the chunk.
    """
    if not 0 <= chunk_len <= num_left:
        raise InvalidStep(
            f"request {sequence.request_id}: chunk_len {chunk_len} is not in"
            f" 0..{num_left}, its uncomputed tokens"
        )
    block_ids = sequence.block_ids
    if new_block_ids:
        block_ids = block_ids + array("i", new_block_ids)
    end = start + chunk_len
    if len(block_ids) * block_size < end:
        raise InvalidStep(
            f"request {sequence.request_id}: {len(block_ids)} blocks of {block_size} tokens"
            f" do not cover {end} tokens"
        )
    return block_ids


# By request, of the tokens that follow the chunk's rows.
StepScores: TypeAlias = Mapping[int, Sequence[PromptScore]]


def score_prompts(logits: Tensor, chunks: Sequence[PlannedChunk]) -> StepScores:
    """The prompt scores from a step's logits [num_logits, vocab_size]."""
    scores: dict[int, Sequence[PromptScore]] = {}
    start = 0
    for chunk in chunks:
        sequence = chunk.sequence
        if sequence.logprobs.prompt and (positions := sequence.scored(chunk.chunk_len)):
            scores[sequence.request_id] = score_tokens(
                logits[start : start + len(positions)],
                sequence.token_ids[positions.start : positions.stop],
                sequence.logprobs.num_top_tokens,
            )
        start += chunk.num_logits
    return scores


def failed_scores(scores: StepScores) -> dict[int, str]:
    """The reasons why prompts cannot be scored, by request; those rows have failed."""
    return {
        request_id: "the model's logits over its prompt hold NaN or +inf"
        for request_id, found in scores.items()
        if any(isnan(score.logprob) for score in found)
    }


def take_scores(chunk: PlannedChunk, scores: StepScores) -> Sequence[PromptScore]:
    """The scores to report with this chunk; keeps the next chunk's first score with the sequence.

    For a sequence whose prompt is scored, before the chunk counts as computed.
    """
    sequence = chunk.sequence
    known = [] if sequence.next_score is None else [sequence.next_score]
    known += scores.get(sequence.request_id, ())
    sequence.next_score = None
    if known and sequence.computed_len + chunk.chunk_len < sequence.prompt_len:
        sequence.next_score = known.pop()
    return known
