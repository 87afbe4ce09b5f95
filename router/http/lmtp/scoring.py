"""One SCORE: how probable continuations are behind a prompt, each in one forward pass.

    version 1    `scored` is a list of ids: a TOKEN for each
    version 2    `scored` is a list of lists of ids, or of texts: one SCORES

The scheduler lets the first of several compute the prompt, and the others find it computed.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from router.engine.infer import Completion
from router.http.body import parse_part
from router.http.lmtp.frames import Frame
from router.http.lmtp.objects import as_json, error_fields, number, scored_token
from router.http.lmtp.prompts import Buffers
from router.http.lmtp.schema import ScoreBody
from router.http.lmtp.services import LmtpServices
from router.http.lmtp.stream_encoder import Message
from router.http.lmtp.streams import SendMessages
from router.http.request_validator import RequestRecord
from router.http.server.errors import HttpError
from router.http.server_info import served_name
from router.request.errors import InvalidRequest, RouterError
from router.request.request import GenerateRequest
from router.request.validation import RawParams

MAX_VALUES = 4096
# Values that are computed together, and their share of the server's slots: requests of others are
# to come between, and a server of few slots is to score as many values as any.
_WAVE, _SLOTS_SHARE = 32, 4


@dataclass(frozen=True, slots=True)
class _Scored:
    token_ids: tuple[int, ...]
    logprobs: tuple[float, ...]


class ScoreStream:
    """The scores of one frame."""

    def __init__(
        self, services: LmtpServices, buffers: Buffers, record: RequestRecord, stream_id: int
    ) -> None:
        self._services = services
        self._buffers = buffers
        self._record = record
        self._stream_id = stream_id
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """Answers the frame, all at once. Raises RouterError, HttpError for `fail`."""
        body = parse_part(frame.text, frame.payload, (), ScoreBody)
        served_name(self._services.info, body.model)
        values = body.values
        if not values or not all(values):
            raise InvalidRequest("`scored` must not be empty, nor have empty values", "scored")
        if len(values) > MAX_VALUES:
            raise InvalidRequest(
                f"`scored` must have at most {MAX_VALUES} values. Given: {len(values)}", "scored"
            )
        # In version 1 an empty prompt is one: what comes first has no probability.
        is_flat = body.is_flat
        prompt_ids: tuple[int, ...] = ()
        if not (is_flat and body.prompt == [] and body.buffer is None):
            vocab_size = self._services.info.limits.vocab_size
            prompt_ids = await self._services.prompts.ids(body, self._buffers, vocab_size)
        requests = [await self._request(prompt_ids, value) for value in values]
        scored = await self._score(requests, len(prompt_ids))
        return self._flat(scored[0]) if is_flat else self._scores(scored)

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        """An error object, which clients of either version see."""
        return [("TOKEN", as_json({"stream_id": self._stream_id, **error_fields(error)}))]

    def cancelled(self) -> list[Message]:
        """An error object too: there is no part of a score."""
        return self.fail(HttpError(499, "cancelled", "the stream was cancelled"))

    async def _request(
        self, prompt_ids: tuple[int, ...], value: str | list[int]
    ) -> GenerateRequest:
        if isinstance(value, str):
            value = list(await self._services.prompts.continuation_ids(value, "scored"))
        raw = RawParams(
            max_new_tokens=1,
            decoder_input_details=True,
            prompt_from=len(prompt_ids),
            names={"inputs": "scored"},
        )
        token_ids = (*prompt_ids, *value)
        self._check_len(len(token_ids))
        return await self._services.validator.check(self._record, token_ids, raw)

    def _check_len(self, num_tokens: int) -> None:
        """In words of SCORE, which knows no tokens to be made."""
        limits = self._services.info.limits
        most = min(limits.max_input_len, limits.max_total_len - 1)
        if num_tokens > most:
            raise InvalidRequest(
                f"`scored` and the prompt must have at most {most} tokens. Given: {num_tokens}",
                "scored",
            )

    async def _score(self, requests: Sequence[GenerateRequest], prompt_len: int) -> list[_Scored]:
        scored: list[_Scored] = []
        num_slots = self._services.info.max_concurrent_requests // _SLOTS_SHARE
        wave_len = max(1, min(_WAVE, num_slots))
        for begin in range(0, len(requests), wave_len):
            wave = requests[begin : begin + wave_len]
            completions = await self._services.infer.complete_all(wave)
            scored += [self._scored(completion, prompt_len) for completion in completions]
        return scored

    def _scored(self, completion: Completion, prompt_len: int) -> _Scored:
        end = completion.finished
        self._record.finished(end)
        self._num_prompt_tokens += end.num_prompt_tokens
        self._num_cached_tokens += end.num_cached_tokens
        if completion.prompt is None:
            message = f"the request ended ({end.reason.value}) before all values were scored"
            raise HttpError(504, end.reason.value, message)
        value_len = end.num_prompt_tokens - prompt_len
        tokens = completion.prompt.tokens[-value_len:]
        return _Scored(
            tuple(token.token_id for token in tokens),
            # Of a first token nothing is known.
            tuple(0.0 if token.logprob is None else token.logprob for token in tokens),
        )

    def _flat(self, scored: _Scored) -> list[Message]:
        last = len(scored.token_ids) - 1
        pairs = zip(scored.token_ids, scored.logprobs, strict=True)
        return [
            ("TOKEN", scored_token(self._stream_id, token_id, logprob, is_last=index == last))
            for index, (token_id, logprob) in enumerate(pairs)
        ]

    def _scores(self, scored: Sequence[_Scored]) -> list[Message]:
        scores = ",".join(
            f'{{"tokens":{list(each.token_ids)},'
            f'"logprobs":[{",".join(number(one, strictly=True) for one in each.logprobs)}]}}'
            for each in scored
        )
        usage = {
            "prompt_tokens": self._num_prompt_tokens,
            "cached_tokens": self._num_cached_tokens,
            "output_tokens": 0,
        }
        fields = f'{{"stream_id":{self._stream_id},"scores":[{scores}],"usage":{as_json(usage)}}}'
        return [("SCORES", fields)]
