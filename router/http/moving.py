"""Streams that a front moves to another replica when theirs is gone.

    : tandem begin {...}           what the answer was drawn from; a later one takes its place
    : tandem out CHOICE ID,ID,...  the tokens of the events before it, in the same write

Behind its last token a choice has the id -1: its end was sent, too. At the next replica old tokens
are events again, of which each API's frames make the same bytes; these are dropped, and what comes
behind them is sent. A choice that has ended computes its last token anew, for its counts.
"""

from collections.abc import Sequence
from dataclasses import replace

import orjson
from pydantic import Field

from router.engine.adapters import Adapters
from router.engine.infer import Accepted, Infer
from router.http.schema import Schema
from router.http.sse import Frames
from router.request.errors import InvalidRequest, RouterError, ServerStopped, Unhealthy
from router.request.request import Event, Finished, GenerateRequest, TokenGenerated

END_ID = -1
# No choice has as many events.
_ALL = 1 << 62
_LAST_YEAR_S = 1e11


class Begin(Schema):
    """What an answer is drawn from: `root` its ids and seeds, `asked_s` (Unix time) its dates.

    `adapter` is the digest of its LoRA adapter, if it has one. `cached` are the prompt tokens of
    each choice that were found in the cache, where that is known.
    """

    root: str = Field(pattern=r"^[0-9a-f]{32}$")
    asked_s: float = Field(ge=0, le=_LAST_YEAR_S)
    fingerprint: str
    adapter: str | None = None
    cached: list[int | None] = Field(default_factory=list)


class StreamState(Schema):
    """What a front knows of a stream: how it began, and the ids of each choice."""

    begin: Begin
    out: list[list[int]]


class MovingStream:
    """A stream that may move: frames around an API's own. `state` is what it goes on from, with
    another adapter of the same name only if it `takes_any`.

    Its sequences are submitted by it, before its first event; then it owns their state.
    """

    def __init__(
        self,
        begin: Begin,
        state: StreamState | None,
        adapters: Adapters,
        *,
        takes_any: bool = False,
    ) -> None:
        self._begin = begin
        self._state = state
        self._adapters = adapters
        self._takes_any = takes_any
        self._frames: Frames[Event] | None = None
        self._accepted: list[Accepted] = []
        self._may_move = True
        # Of each choice: prompt tokens that were found in the cache; events that were sent before.
        self._cached: list[int | None] = []
        self._nums_old: list[int] = []
        # What is to go out before the next event.
        self._head = b""

    def around(self, frames: Frames[Event]) -> Frames[Event]:
        """These frames, with the state for the front between them."""
        self._frames = frames
        return self

    def submit(self, infer: Infer, draws: Sequence[GenerateRequest]) -> list[Accepted]:
        """As `Infer.submit`, behind the tokens that were made before. Raises InvalidRequest, too.

        The prompt's log-probabilities are not made again: a stream with them stays where it is.
        """
        self._may_move = not any(draw.logprobs.prompt for draw in draws)
        self._cached = [None] * len(draws)
        self._nums_old = [0] * len(draws)
        adapter = self._adapters.digest_of(draws[0].adapter_id)
        if self._state is not None and adapter != self._begin.adapter and not self._takes_any:
            rule = "be that of the adapter here, which has other files"
            raise InvalidRequest(f"`adapter` must {rule}. Given: {self._begin.adapter}", "adapter")
        self._begin = self._begin.model_copy(update={"adapter": adapter})
        if self._state is not None:
            draws = self._going_on(draws, self._state)
        self._accepted = infer.submit(draws)
        self._head = self._beginning()
        return self._accepted

    def _going_on(
        self, draws: Sequence[GenerateRequest], state: StreamState
    ) -> list[GenerateRequest]:
        num_given = len(state.out)
        if num_given != len(draws) or num_given != len(state.begin.cached) or not self._may_move:
            rule = f"be of the {len(draws)} choices of a stream that may move"
            raise InvalidRequest(f"`out` and `cached` must {rule}. Given: {num_given}", "out")
        self._cached = [*state.begin.cached]
        moved = []
        for choice, (draw, made_ids) in enumerate(zip(draws, state.out, strict=True)):
            has_ended = made_ids[-1:] == [END_ID]
            self._nums_old[choice] = _ALL if has_ended else len(made_ids)
            output_ids = tuple(made_ids[:-2] if has_ended else made_ids)
            most = draw.stop.max_new_tokens
            if len(output_ids) >= most:
                rule = f"hold fewer than {most} tokens, at which a choice ends"
                raise InvalidRequest(f"`out` must {rule}. Given: {len(output_ids)}", "out")
            moved.append(replace(draw, output_ids=output_ids, is_moved=True))
        return moved

    def render(self, index: int, burst: Sequence[Event]) -> bytes:
        """The frames of what was not sent before, with the state for the front between them."""
        assert self._frames is not None, "it is around them"
        if not self._may_move:
            return self._frames.render(index, burst)
        # One that opens with a burst of its own has one choice.
        choice = index % len(self._accepted)
        if not burst:
            opening = self._frames.render(index, burst)
            return self._with_head(opening + _out(choice, ()) if self._state is None else b"")
        old_len = self._old_len(choice, burst)
        if old_len < len(burst) and self._cached[choice] is None:
            self._cached[choice] = self._accepted[choice].num_cached_tokens
            self._head = self._beginning()
        end = burst[-1]
        num_cached = self._cached[choice]
        if isinstance(end, Finished) and num_cached is not None:
            # As the first replica found it.
            burst = [*burst[:-1], replace(end, num_cached_tokens=num_cached)]
        if old_len:
            self._frames.render(index, burst[:old_len])
        new = burst[old_len:]
        if not new:
            return self._with_head(b"")
        token_ids = [event.token.token_id for event in new if isinstance(event, TokenGenerated)]
        if isinstance(new[-1], Finished):
            token_ids.append(END_ID)
        return self._with_head(self._frames.render(index, new) + _out(choice, token_ids))

    def fail(self, error: RouterError) -> bytes | None:
        """As the frames do; but where only this server is at fault, the front moves the stream."""
        assert self._frames is not None, "it is around them"
        if self._may_move and isinstance(error, ServerStopped | Unhealthy):
            return None
        return self._frames.fail(error)

    def end(self) -> bytes:
        """As the frames do."""
        assert self._frames is not None, "it is around them"
        return self._frames.end()

    def _old_len(self, choice: int, burst: Sequence[Event]) -> int:
        """How much of a burst was sent before."""
        for position, event in enumerate(burst):
            if self._nums_old[choice] == 0:
                return position
            self._nums_old[choice] -= isinstance(event, TokenGenerated)
        return len(burst)

    def _beginning(self) -> bytes:
        begin = self._begin.model_copy(update={"cached": self._cached}).model_dump()
        return b": tandem begin %b\n\n" % orjson.dumps(begin)

    def _with_head(self, data: bytes) -> bytes:
        head = self._head
        self._head = b""
        return head + data


def _out(choice: int, token_ids: Sequence[int]) -> bytes:
    return b": tandem out %d %b\n\n" % (choice, ",".join(map(str, token_ids)).encode())
