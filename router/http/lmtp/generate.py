"""One GENERATE stream, from the fields of its frame to its last object.

    version 1    TOKEN*, the last one with a finish reason, or an error object
    version 2    TOKEN* DONE, or TOKEN* and an error object

With `include_reasoning` the answer to a chat is read as those of HTTP are: its text is what is
said, and the thought comes beside it.

A client of version 1 does not see an error behind the fourth token: it waits for ever. So from the
fourth on each token is kept back until the next one is there, and a failure ends the stream with
the last good token and "length"; the client asks again, and then gets the error at once.
"""

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import replace
from typing import TypeAlias

import orjson

from proto.contract import FinishReason
from router.engine.validation import Limits, RawParams
from router.http.answers import Reading, TokenReader
from router.http.conversation import ChatPrompt, images_in
from router.http.errors import HttpError
from router.http.lmtp.frames import (
    Frame,
    GenerateFields,
    Message,
    Prompt,
    as_json,
    number,
    turns_of,
)
from router.http.lmtp.streams import QueueNotices, SendMessages, StreamContext
from router.http.openai.schema import normalize
from router.request.errors import RouterError, wrong
from router.request.request import (
    Event,
    Failed,
    Finished,
    GenerateRequest,
    TokenGenerated,
    TokenLogprob,
)
from router.text.answer_reader import Piece, TextPiece, ThoughtPiece

# Tokens that version 1 sends at once: an error behind them is still seen.
_NUM_UNDELAYED = 3
# Finish reasons that are tokens of their own.
_BY_TOKEN = (FinishReason.EOS, FinishReason.STOP_TOKEN)
_BY_LENGTH = (FinishReason.LENGTH, FinishReason.DEADLINE, FinishReason.PAUSED)
MAX_TOP_LOGPROBS = 256
MAX_STOPS = 64
# The default of LMQL's own server.
_DEFAULT_MAX_TOKENS = 32
# The protocol's names of `RawParams`' fields, for errors.
_NAMES = {
    "max_new_tokens": "max_tokens",
    "min_new_tokens": "min_tokens",
    "top_n_tokens": "top_logprobs",
    "grammar": "constraint",
    "max_time": "timeout_s",
    "output_ids": "output",
    "keep_stop_string": "include_stop",
}


class EncoderV1:
    """Encodes the events of one stream for version 1."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._num_undelayed = _NUM_UNDELAYED
        self._kept: TokenGenerated | None = None

    def configure(self, *, has_tops: bool, has_deadline: bool) -> None:
        """Called before the first token. With a deadline the first ones are kept back as well."""
        if has_deadline:
            self._num_undelayed = 0

    def encode(self, burst: Sequence[Event]) -> list[Message]:
        """The messages of events, of which none is Failed, but for a token that is kept back."""
        messages: list[Message] = []
        for event in burst:
            if isinstance(event, TokenGenerated):
                messages += self._release(None)
                self._kept = event
            elif isinstance(event, Finished):
                messages += self._finish(event.reason)
        return messages + self._release(None) if self._num_undelayed > 0 else messages

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """The kept token with "length"; the error where there is none."""
        return self._release("length") or self._context.error(error)

    def cancelled(self, num_prompt_tokens: int, num_cached_tokens: int) -> list[Message]:
        """The kept token with "cancelled"; an error where there is none."""
        error = HttpError(499, "cancelled", "the stream was cancelled")
        return self._release("cancelled") or self._context.error(error)

    def _finish(self, reason: FinishReason) -> list[Message]:
        word = _short_reason(reason)
        eos_id = self._context.services.eos_id
        messages: list[Message] = []
        # LMQL ends a hole by an end token alone.
        needs_end = reason is FinishReason.CONSTRAINT_COMPLETE or self._kept is None
        if needs_end and word == "stop" and eos_id is not None:
            messages = self._release(None)
            self._kept = TokenGenerated(TokenLogprob(eos_id, "", 0.0), "")
        if self._kept is None:
            message = f"the stream ended ({reason.value}) before another token was made"
            return self.fail(HttpError(504, reason.value, message))
        return messages + self._release(word)

    def _release(self, reason: str | None) -> list[Message]:
        if self._kept is None:
            return []
        event = self._kept
        self._kept = None
        self._num_undelayed -= 1
        fields = _token_fields(self._context.stream_id, event, reason, version=1, has_tops=True)
        return [("TOKEN", f"{{{fields}}}")]


class EncoderV2:
    """Encodes the events of one stream for version 2."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._stream_id = context.stream_id
        self._has_tops = False
        self._reader: TokenReader | None = None
        # Of each token what is said, and of all what is thought.
        self._texts: list[str] = []
        self._thought = ""

    def configure(self, *, has_tops: bool, has_deadline: bool) -> None:
        """Called before the first token. Alternatives are sent where they were requested."""
        self._has_tops = has_tops

    def separate(self, reader: TokenReader) -> None:
        """Called before the first token, where the thought is no part of the text."""
        self._reader = reader

    def encode(self, burst: Sequence[Event]) -> list[Message]:
        """The messages of events, of which none is Failed."""
        end = burst[-1] if burst and isinstance(burst[-1], Finished) else None
        tokens = [event for event in burst if isinstance(event, TokenGenerated)]
        messages: list[Message] = []
        for event in tokens:
            last = end if event is tokens[-1] else None
            is_end = last is not None and last.reason in _BY_TOKEN and event.token.hidden
            fields = _token_fields(
                self._stream_id,
                event,
                None if last is None else _short_reason(last.reason),
                version=2,
                has_tops=self._has_tops,
            )
            text = event.text
            if self._reader is not None:
                text, thought = _text_and_thought(self._reader.token(event))
                self._thought += thought
                if self._reader.is_thought:
                    fields += f',"reasoning":{orjson.dumps(thought).decode()}'
            shown = orjson.dumps(text).decode()
            fields += f',"text":{shown},"is_end":{"true" if is_end else "false"}'
            messages.append(("TOKEN", f"{{{fields}}}"))
            self._texts.append(text)
        if end is not None:
            messages.append(("DONE", as_json(self._done(end))))
        return messages

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        return self._context.error(error)

    def cancelled(self, num_prompt_tokens: int, num_cached_tokens: int) -> list[Message]:
        """A DONE with the text so far."""
        fields = {
            "stream_id": self._stream_id,
            "finish_reason": "cancelled",
            "text": "".join(self._texts),
            "tail": "",
            "usage": usage_fields(num_prompt_tokens, num_cached_tokens, len(self._texts)),
        }
        return [("DONE", as_json(fields | self._reasoning()))]

    def _done(self, end: Finished) -> dict[str, object]:
        usage = usage_fields(end.num_prompt_tokens, end.num_cached_tokens, end.num_generated_tokens)
        text = end.text
        tail = end.tail
        if self._reader is not None:
            tail, thought = _text_and_thought(self._reader.finish(end))
            text = "".join(self._texts) + tail
            self._thought += thought
        fields: dict[str, object] = {
            "stream_id": self._stream_id,
            "finish_reason": end.reason.value,
            "text": text,
            "tail": tail,
            "usage": usage,
            **self._reasoning(),
        }
        optional = {
            "stop_string": end.stop_string,
            "constraint_satisfied": end.constraint_satisfied,
            "violation": end.violation,
            "seed": end.seed,
        }
        return fields | {key: value for key, value in optional.items() if value is not None}

    def _reasoning(self) -> dict[str, object]:
        return {} if self._reader is None else {"reasoning": self._thought}


def _text_and_thought(pieces: Sequence[Piece]) -> tuple[str, str]:
    """What the pieces add to each."""
    said = "".join(piece.text for piece in pieces if isinstance(piece, TextPiece))
    return said, "".join(piece.text for piece in pieces if isinstance(piece, ThoughtPiece))


StreamEncoder: TypeAlias = EncoderV1 | EncoderV2


def _token_fields(
    stream_id: int, event: TokenGenerated, reason: str | None, *, version: int, has_tops: bool
) -> str:
    """The fields of a token that both versions have, as JSON without braces."""
    token = event.token
    strictly = version > 1
    logprob = token.logprob if token.logprob is not None else 0.0
    quoted = "null" if reason is None else f'"{reason}"'
    fields = (
        f'"token":{token.token_id},"stream_id":{stream_id},'
        f'"logprob":{number(logprob, strictly=strictly)},"finish_reason":{quoted}'
    )
    if not has_tops:
        return fields
    tops = {each.token_id: each.logprob for each in event.top_tokens if each.logprob is not None}
    tops.setdefault(token.token_id, logprob)
    entries = [f'"{key}":{number(tops[key], strictly=strictly)}' for key in tops]
    return f'{fields},"top_logprobs":{{{",".join(entries)}}}'


def usage_fields(num_prompt: int, num_cached: int, num_output: int) -> dict[str, int]:
    """The tokens of a request: of the prompt, of these in the prefix cache, generated."""
    return {"prompt_tokens": num_prompt, "cached_tokens": num_cached, "output_tokens": num_output}


def _short_reason(reason: FinishReason) -> str:
    return "length" if reason in _BY_LENGTH else "stop"


class GenerateStream:
    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._services = context.services
        self._encoder: StreamEncoder = (
            EncoderV2(context) if context.version > 1 else EncoderV1(context)
        )
        self._num_cached_tokens = 0

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """Streams tokens; returns the last messages. Raises RouterError, HttpError."""
        body = await self._services.read(frame, GenerateFields)
        adapter_id = self._services.models.find(body.model).adapter_id
        request, reading = await self._request(body, adapter_id)
        self._encoder.configure(
            has_tops=bool(request.logprobs.num_top_tokens) or self._context.version == 1,
            has_deadline=request.deadline_s is not None,
        )
        (accepted,) = self._services.infer.submit([request])
        if reading is not None and isinstance(self._encoder, EncoderV2):
            reader = reading.reader()
            reader.skip(accepted.text_before)
            self._encoder.separate(reader)
        notices = QueueNotices(self._context, lambda: accepted.place)
        try:
            async with aclosing(accepted):
                async for burst in accepted:
                    notices.started()
                    self._num_cached_tokens = accepted.num_cached_tokens
                    end = burst[-1]
                    if isinstance(end, Failed):
                        await send(self._encoder.encode(burst[:-1]))
                        raise end.error
                    messages = self._encoder.encode(burst)
                    if isinstance(end, Finished):
                        self._context.record.finished(end)
                        return messages
                    await send(messages)
        finally:
            notices.close()
        raise AssertionError("the last burst has the end")

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        return self._encoder.fail(error)

    def cancelled(self) -> list[Message]:
        """The last objects of a stream that its client cancelled."""
        num_prompt_tokens = self._context.record.num_prompt_tokens
        return self._encoder.cancelled(num_prompt_tokens, self._num_cached_tokens)

    async def _request(
        self, body: GenerateFields, adapter_id: int | None
    ) -> tuple[GenerateRequest, Reading | None]:
        services = self._services
        context = self._context
        if body.include_reasoning:
            return await self._chat(body, adapter_id)
        prompt = await services.prompts.read(body)
        if prompt.images:
            services.info.check_sees(prompt.images[0].place)
        raw = raw_params(body, prompt, services.info.limits, version=context.version)
        raw = replace(raw, adapter_id=adapter_id)
        adds = prompt.add_special_tokens
        request = await services.validator.check(
            context.record,
            prompt.content,
            raw,
            add_special_tokens=adds,
            images=prompt.images,
        )
        return request, None

    async def _chat(
        self, body: GenerateFields, adapter_id: int | None
    ) -> tuple[GenerateRequest, Reading | None]:
        """The request of an answer whose thought is no part of its text, and how it is read."""
        if body.messages is None or body.prompt is not None or body.text is not None:
            raise wrong("include_reasoning", "is for `messages` alone", value=True)
        if self._context.version == 1:
            raise wrong("include_reasoning", "is of version 2: send HELLO", value=True)
        answers = self._services.answers
        record = self._context.record
        turns = turns_of(body.messages)
        asked = ChatPrompt(
            messages=[turn.for_template() for turn in turns],
            continues=turns[-1].role == "assistant",
            images=images_in(turns),
        )
        rendered = await answers.render(record, lambda: asked)
        raw = raw_params(
            body, Prompt(rendered.text, "messages"), answers.limits, version=self._context.version
        )
        raw = replace(raw, adapter_id=adapter_id)
        return await answers.check(record, rendered, raw, None)


def raw_params(body: GenerateFields, prompt: Prompt, limits: Limits, *, version: int) -> RawParams:
    """GENERATE's fields as unchecked parameters. Raises InvalidRequest."""
    tops = body.top_logprobs
    # A mask may be large: only validation reads it, once.
    sampling = {**body.sampling(), "logit_bias": None}
    if body.temperature is None:
        sampling["temperature"] = 0.0
    raw = RawParams(
        **sampling,
        typical_p=body.typical_p,
        max_new_tokens=_max_new_tokens(body, prompt, limits, version),
        min_new_tokens=body.min_tokens,
        stop=tuple(body.stop or ()),
        max_stop_sequences=MAX_STOPS,
        top_n_tokens=(1 if version == 1 else 0) if tops is None else tops,
        max_top_n_tokens=MAX_TOP_LOGPROBS,
        stop_token_ids=tuple(body.stop_token_ids or ()),
        ignore_eos=bool(body.ignore_eos),
        keep_stop_string=body.include_stop is not False,
        grammar=body.constraint,
        max_time=body.timeout_s,
        output_ids=tuple(body.output or ()),
        names={**_NAMES, "inputs": prompt.field},
    )
    return replace(normalize(raw, limits), logit_bias=body.logit_bias)


def _max_new_tokens(
    body: GenerateFields, prompt: Prompt, limits: Limits, version: int
) -> int | None:
    """In version 1 the default is LMQL's, or the room that is left; else None: all the room."""
    if body.max_tokens is not None or version > 1:
        return body.max_tokens
    if isinstance(prompt.content, str):
        return _DEFAULT_MAX_TOKENS
    return max(1, min(_DEFAULT_MAX_TOKENS, limits.max_total_len - len(prompt.content)))
