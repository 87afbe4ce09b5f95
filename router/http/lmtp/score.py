"""One SCORE stream: the log-probabilities of continuations, each in one forward pass.

    version 1    `scored` is a list of ids: a TOKEN for each
    version 2    `scored` is a list of lists of ids, or of texts: one SCORES

Of several continuations the scheduler computes the prompt once.
"""

from collections.abc import Sequence

from router.engine.infer import Completion
from router.engine.validation import RawParams
from router.http.errors import HttpError
from router.http.lmtp.frames import Frame, Message, ScoreFields, as_json, number
from router.http.lmtp.generate import usage_fields
from router.http.lmtp.streams import SendMessages, StreamContext
from router.request.errors import InvalidRequest, RouterError
from router.request.request import GenerateRequest, TokenLogprob

MAX_VALUES = 4096
# Values that are computed together: at most so many, and at most this part of the server's slots,
# so that other requests come between, and a server of few slots scores as many values as any.
_MAX_WAVE_LEN = 32
_SLOTS_DIVISOR = 4
_STOP = '"stop"'


class ScoreStream:
    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._services = context.services
        self._num_prompt_tokens = 0
        self._num_cached_tokens = 0

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """All scores at once. Raises RouterError, HttpError for `fail`."""
        body = await self._services.read(frame, ScoreFields)
        adapter_id = self._services.models.find(body.model).adapter_id
        values = body.values
        if not values or not all(values):
            raise InvalidRequest("`scored` must not be empty, nor have empty values", "scored")
        if len(values) > MAX_VALUES:
            raise InvalidRequest(
                f"`scored` must have at most {MAX_VALUES} values. Given: {len(values)}", "scored"
            )
        prompt_ids: tuple[int, ...] = ()
        # Version 1 accepts an empty prompt: the first token has no log-probability then.
        if not (body.is_flat and body.prompt == []):
            prompt_ids = await self._services.prompts.ids(body)
        requests = [await self._request(prompt_ids, value, adapter_id) for value in values]
        scored = await self._score(requests, len(prompt_ids))
        return self._tokens(scored[0]) if body.is_flat else self._scores(scored)

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        return self._context.error(error)

    def cancelled(self) -> list[Message]:
        """An error object: a SCORE has no partial result."""
        return self.fail(HttpError(499, "cancelled", "the stream was cancelled"))

    async def _request(
        self, prompt_ids: tuple[int, ...], value: str | list[int], adapter_id: int | None
    ) -> GenerateRequest:
        if isinstance(value, str):
            value = list(await self._services.prompts.continuation_ids(value, "scored"))
        raw = RawParams(
            max_new_tokens=1,
            decoder_input_details=True,
            prompt_from=len(prompt_ids),
            adapter_id=adapter_id,
            names={"inputs": "scored"},
        )
        token_ids = (*prompt_ids, *value)
        self._check_len(len(token_ids))
        return await self._services.validator.check(self._context.record, token_ids, raw)

    def _check_len(self, num_tokens: int) -> None:
        """Checked here too, since validation's error is about generated tokens."""
        limits = self._services.info.limits
        max_len = min(limits.max_input_len, limits.max_total_len - 1)
        if num_tokens > max_len:
            raise InvalidRequest(
                f"`scored` and the prompt must have at most {max_len} tokens. Given: {num_tokens}",
                "scored",
            )

    async def _score(
        self, requests: Sequence[GenerateRequest], prompt_len: int
    ) -> list[Sequence[TokenLogprob]]:
        """The tokens of each value."""
        scored: list[Sequence[TokenLogprob]] = []
        num_slots = self._services.info.max_concurrent_requests // _SLOTS_DIVISOR
        wave_len = max(1, min(_MAX_WAVE_LEN, num_slots))
        for start in range(0, len(requests), wave_len):
            completions = await self._services.infer.complete_all(
                requests[start : start + wave_len]
            )
            scored += [self._scored(completion, prompt_len) for completion in completions]
        return scored

    def _scored(self, completion: Completion, prompt_len: int) -> Sequence[TokenLogprob]:
        end = completion.finished
        self._context.record.finished(end)
        self._num_prompt_tokens += end.num_prompt_tokens
        self._num_cached_tokens += end.num_cached_tokens
        if completion.prompt is None:
            message = f"the request ended ({end.reason.value}) before all values were scored"
            raise HttpError(504, end.reason.value, message)
        return completion.prompt.tokens[prompt_len - end.num_prompt_tokens :]

    def _tokens(self, scored: Sequence[TokenLogprob]) -> list[Message]:
        """Version 1: a TOKEN for each scored token."""
        last = len(scored) - 1
        return [
            (
                "TOKEN",
                f'{{"token":{token.token_id},"stream_id":{self._context.stream_id},'
                f'"logprob":{_logprob(token, strictly=False)},'
                f'"finish_reason":{"null" if index < last else _STOP}}}',
            )
            for index, token in enumerate(scored)
        ]

    def _scores(self, scored: Sequence[Sequence[TokenLogprob]]) -> list[Message]:
        """Version 2: one SCORES."""
        scores = ",".join(
            f'{{"tokens":{[token.token_id for token in each]},'
            f'"logprobs":[{",".join(_logprob(token, strictly=True) for token in each)}]}}'
            for each in scored
        )
        usage = as_json(usage_fields(self._num_prompt_tokens, self._num_cached_tokens, 0))
        head = f'{{"stream_id":{self._context.stream_id},"scores":[{scores}]'
        return [("SCORES", f'{head},"usage":{usage}}}')]


def _logprob(token: TokenLogprob, *, strictly: bool) -> str:
    """As JSON; the first token of a sequence has none."""
    return number(0.0 if token.logprob is None else token.logprob, strictly=strictly)
