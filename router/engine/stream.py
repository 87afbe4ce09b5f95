"""The stream of one accepted request: tokens in, text and events out.

    batcher --Generation--> Stream --events, in bursts--> one reader

It turns tokens into text, finds stop strings, measures times, and keeps the events until the reader
takes them. Exactly one Finished or Failed is its last event, however often it is ended. It knows no
scheduler and no HTTP; the batcher is its only mutator.

A burst is everything that is there when the reader comes: one wake-up, however many tokens a step
or a slow reader has gathered.
"""

import asyncio
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from math import inf
from typing import TypeAlias

from proto.contract import FinishReason, Generation, MaskEffect, TopToken
from router.request.errors import RouterError
from router.request.request import (
    NO_WORK,
    ApiKey,
    Event,
    Failed,
    Finished,
    GenerateRequest,
    PromptScored,
    Timings,
    TokenGenerated,
    TokenLogprob,
    Work,
)
from router.text.output_text import HeldTokens, OutputText
from router.text.tokenizer import Tokenizer

# Tokens of before that are events again in one turn of the event loop: thousands would stop it.
_REPLAY_LEN = 256
# Takes a burst, or answers False.
Sink: TypeAlias = Callable[[Sequence[Event]], bool]
_ENDS_BY_TOKEN = frozenset({FinishReason.EOS, FinishReason.STOP_TOKEN})


class StreamGroup(ABC):
    """Streams that one request submits in turns, in slots that it keeps between them.

        opened -> submit -> all streams have ended -> advance: submit -> ... -> closed

    Its owner decides between two steps what it asks for next, before the next step is scheduled:
    so its sequences miss no step, and find the blocks that they released. `adapter_id` is that of
    all its requests. The other attributes are the batcher's to set.
    """

    def __init__(self, num_slots: int, key: ApiKey, adapter_id: int | None = None) -> None:
        self.num_slots = num_slots
        self.key = key
        self.adapter_id = adapter_id
        self.open_ids: set[int] = set()
        # All streams have ended since it advanced last.
        self.is_settled = False

    @abstractmethod
    def advance(self) -> None:
        """Called each time that all of its streams have ended; must not raise."""


class Stream:
    """The events of one request.

    `text`: of the output made before the request; without, it is detokenized here. `work`: what
    was done for the request until now.
    Times are the caller's, in monotonic seconds; those of things yet to happen are None.
    `first_scheduled_s` and `cached_len` (prompt tokens found in the prefix cache) are the
    batcher's to set; `sink` is the reader's, who is woken for what the sink does not take, and for
    the last burst.
    """

    def __init__(
        self,
        request_id: int,
        request: GenerateRequest,
        tokenizer: Tokenizer,
        now_s: float,
        text: OutputText | None = None,
        work: Callable[[], Work] = lambda: NO_WORK,
        group: StreamGroup | None = None,
    ) -> None:
        stop = request.stop
        self.request_id = request_id
        self.request = request
        self.group = group
        self.submitted_s = now_s
        self.first_scheduled_s: float | None = None
        self.first_token_s: float | None = None
        self.last_token_s: float | None = None
        self.cached_len = 0
        self.sink: Sink | None = None
        self.num_generated = 0
        self.end: Finished | Failed | None = None
        self._work = work
        self._tokenizer = tokenizer
        constraint = request.constraint
        dropped = () if constraint is None else constraint.dropped_phrases
        self._text = OutputText(request, tokenizer) if text is None else text
        self._is_watched = self._text.is_watched
        # No token ends it but by what the shard says.
        ends_early = self._is_watched or request.pause_after is not None
        self._is_plain = not (ends_early or request.is_moved)
        self._special_ids = tokenizer.special_ids
        # A token that ends a text under a constraint is no part of what satisfies it.
        self._keeps_stop_token = stop.keep_stop_string and not request.has_rule
        # A search that pauses chooses among the alternatives, even if the first one ends the text.
        keeps = request.pause_after is not None or (stop.keep_stop_string and not dropped)
        self._held = HeldTokens(keeps_alternatives=keeps)
        self._prompt_logprobs: list[float] = []
        self._prompt_top_tokens: list[tuple[TopToken, ...]] = []
        self._texts: list[str] = []
        self._events: list[Event] = []
        self._waiter: asyncio.Future[None] | None = None
        # Those of before that are to be events again.
        self._old_ids = list(reversed(request.output_ids)) if request.is_moved else []

    async def take(self) -> Sequence[Event]:
        """The events since the last call; waits while there are none. Empty after the end.

        A failure comes alone, so that a reader shows what was made before it, even where the next
        step fails at once.
        """
        while self._old_ids and not self._events:
            self._replay(_REPLAY_LEN)
            await asyncio.sleep(0)
        if not self._events:
            if self.end is not None:
                return ()
            self._waiter = asyncio.get_running_loop().create_future()
            try:
                await self._waiter
            finally:
                self._waiter = None
        events = self._events
        if len(events) > 1 and isinstance(events[-1], Failed):
            self._events = [events.pop()]
            return events
        return self.taken()

    def taken(self) -> Sequence[Event]:
        """The events since the last call, without waiting."""
        events = self._events
        self._events = []
        return events

    @property
    def num_computed(self) -> int:
        """Tokens that were computed for it: of its prompt those that were not cached."""
        if self.first_scheduled_s is None:
            return 0
        return len(self.request.prompt_ids) - self.cached_len + self.num_generated

    @property
    def num_unread(self) -> int:
        """Events that wait for the reader."""
        return len(self._events)

    @property
    def text_before(self) -> str:
        """What was shown of the tokens that were made before."""
        return self._text.text_before

    def wake(self) -> None:
        """Wakes a waiting reader if there are events, unless its sink takes them."""
        waiter = self._waiter
        if waiter is None or not self._events or waiter.done():
            return
        if self.sink is not None and self.end is None:
            try:
                is_taken = self.sink(self._events)
            except Exception as error:  # noqa: BLE001 (it is the reader's own)
                waiter.set_exception(error)
                return
            if is_taken:
                self._events = []
                return
        waiter.set_result(None)

    def add_token(self, token_id: int, logprob: float, now_s: float) -> None:
        """As `add`, of a token of which nothing else is to be said: of nearly every one."""
        if self._is_plain and self.last_token_s is not None:
            self._add_token(token_id, logprob)
            self.last_token_s = now_s
        else:
            self.add(Generation.of_plain((self.request_id, token_id, logprob)), now_s)

    def add(self, generation: Generation, now_s: float) -> None:
        """What a step brought; sets `end` when the shard, or the text, ends the sequence."""
        if self._old_ids:
            self._replay(len(self._old_ids))
        if generation.prompt_logprobs:
            self._prompt_logprobs += generation.prompt_logprobs
            self._prompt_top_tokens += generation.prompt_top_tokens
        tokens = generation.tokens
        reason = generation.finish_reason
        if self.first_token_s is None and (tokens or reason is not None):
            self._begin(now_s)
        ends_by_token = reason is not None and reason in _ENDS_BY_TOKEN
        for token in tokens:
            is_end = ends_by_token and token is tokens[-1]
            top_tokens = self._alternatives(token.top_tokens) if token.top_tokens else ()
            self._add_token(token.token_id, token.logprob, is_end, top_tokens, token.mask_effect)
            if self._is_watched and self._text.matched is not None:
                reason = FinishReason.STOP_STRING
                break
            # Forced tokens may go beyond a pause: the request that continues gets them again.
            if self._is_paused and (reason is None or token is not tokens[-1]):
                reason = FinishReason.PAUSED
                break
        if tokens:
            self.last_token_s = now_s
        if reason is not None:
            stop_id = tokens[-1].token_id if reason is FinishReason.STOP_TOKEN else None
            if stop_id in self.request.template_end_ids:
                # Shards know no template: to them it is a stop token.
                reason = FinishReason.EOS
                stop_id = None
            self.finish(reason, now_s, stop_id, generation.constraint_satisfied)

    def finish(
        self,
        reason: FinishReason,
        now_s: float,
        stop_token_id: int | None = None,
        satisfied: bool | None = None,
    ) -> None:
        """Ends it well, unless it has ended. `satisfied`: the shard's verdict on the constraint."""
        if self.end is not None:
            return
        self._replay(len(self._old_ids))
        is_paused = reason is FinishReason.PAUSED
        tail = "" if is_paused else self._text.flush()
        matched = self._text.matched
        self._held.show(len(tail))
        self._events += self._held.all() if is_paused else self._held.cut()
        request = self.request
        sampling = request.sampling
        num_before = 0 if request.is_moved else len(request.output_ids)
        self.end = Finished(
            reason=FinishReason.STOP_STRING if matched is not None else reason,
            text="".join(self._texts) + tail,
            tail=tail,
            num_prompt_tokens=len(request.prompt_ids) + num_before,
            num_cached_tokens=self.cached_len,
            num_generated_tokens=self.num_generated,
            seed=sampling.seed if sampling.do_sample else None,
            stop_string=matched,
            stop_token_id=stop_token_id if matched is None else None,
            timings=self._timings(now_s),
            constraint_satisfied=(
                None if is_paused else self._is_satisfied(matched is not None, satisfied)
            ),
            work=self._work(),
        )
        self._events.append(self.end)

    def fail(self, error: RouterError) -> None:
        """Fails it, unless it has ended."""
        if self.end is None:
            self.end = Failed(error)
            self._events.append(self.end)

    @property
    def _is_paused(self) -> bool:
        """It has as many tokens as were requested before a pause."""
        return self.num_generated == self.request.pause_after

    def _is_satisfied(self, is_stopped: bool, satisfied: bool | None) -> bool | None:
        """Whether the text satisfies the constraint; None without one.

        A stop string is masked where the constraint would not hold with such an end, so where one
        ends the text it holds. An unforeseen end (a deadline) counts as not satisfied.
        """
        if not self.request.has_rule:
            return None
        return satisfied is not False if is_stopped else bool(satisfied)

    def _begin(self, now_s: float) -> None:
        """Records its first token, or its end without one."""
        self.first_token_s = now_s
        if self.request.logprobs.prompt:
            self._events.append(self._scored_prompt())

    def _replay(self, count: int) -> None:
        """Makes the next tokens of before events again."""
        for _ in range(min(count, len(self._old_ids))):
            self._add_token(self._old_ids.pop(), 0.0)

    def _add_token(
        self,
        token_id: int,
        logprob: float,
        ends: bool = False,
        top_tokens: tuple[TokenLogprob, ...] = (),
        mask_effect: MaskEffect | None = None,
    ) -> None:
        self.num_generated += 1
        special = token_id in self._special_ids
        is_dropped = hidden = False
        if special or ends:
            # Under a constraint special tokens are marks of the format, and ends, also those that
            # were to be ignored.
            is_mark = token_id in self.request.shown_ids
            ends = ends or (not is_mark and self.request.has_rule)
            is_dropped = ends and not self._keeps_stop_token
            is_skipped = special and self.request.skip_special_tokens and not is_mark
            hidden = is_dropped or is_skipped
        pushed, shown = ("", "") if is_dropped else self._text.push(token_id)
        if shown:
            self._texts.append(shown)
        # What is pushed may begin with the rest of a character that the token leaves broken.
        own = self._tokenizer.token_text(token_id) if hidden else pushed
        reported = TokenLogprob(token_id, own, logprob, special, hidden)
        event = TokenGenerated(reported, shown, top_tokens, mask_effect)
        if not self._is_watched:
            self._events.append(event)
            return
        self._held.add(event, len(pushed))
        self._held.show(len(shown))
        is_cut = self._text.matched is not None
        self._events += self._held.cut() if is_cut else self._held.whole()

    def _scored_prompt(self) -> PromptScored:
        scored_ids = self.request.prompt_ids[self.request.logprobs.prompt_from :]
        logprobs: list[float | None] = [*self._prompt_logprobs]
        top_tokens = [self._alternatives(top) for top in self._prompt_top_tokens]
        if self.request.logprobs.prompt_from == 0:
            # Nothing comes before the very first token.
            logprobs.insert(0, None)
            if top_tokens:
                top_tokens.insert(0, ())
        tokens = [
            self._report(token_id, logprob)
            for token_id, logprob in zip(scored_ids, logprobs, strict=True)
        ]
        return PromptScored(tuple(tokens), tuple(top_tokens))

    def _alternatives(self, top_tokens: Sequence[TopToken]) -> tuple[TokenLogprob, ...]:
        # Where fewer tokens than requested can be sampled, the others have no probability.
        return tuple(
            [self._report(top.token_id, top.logprob) for top in top_tokens if top.logprob > -inf]
        )

    def _report(self, token_id: int, logprob: float | None) -> TokenLogprob:
        text = self._tokenizer.token_text(token_id)
        return TokenLogprob(token_id, text, logprob, self._tokenizer.is_special(token_id))

    def _timings(self, now_s: float) -> Timings:
        begun_s = now_s if self.first_scheduled_s is None else self.first_scheduled_s
        first_s = now_s if self.first_token_s is None else self.first_token_s
        return Timings(
            queue_s=begun_s - self.submitted_s,
            time_to_first_token_s=first_s - self.submitted_s,
            inference_s=now_s - begun_s,
            total_s=now_s - self.submitted_s,
        )
