"""The holes of a search's frame: from their fields to requests, checked once."""

import asyncio
from collections.abc import Iterable

from router.engine.beam_search.types import Dead, Hole
from router.http.lmtp.beam_schema import HoleBody, SearchBody
from router.http.lmtp.buffers import Buffers
from router.http.lmtp.requests import raw_of
from router.http.lmtp.schema import GenerateBody
from router.http.lmtp.services import LmtpServices
from router.http.request_record import RequestRecord
from router.request.errors import ConstraintRefused, InvalidRequest
from router.request.parameters import Limits

# Refusals by what a constraint means. By the others one beam is impossible, and no other.
_MEANINGLESS = ("malformed", "not_enforced")


class HoleReader:
    """Reads the holes of one frame."""

    def __init__(self, services: LmtpServices, buffers: Buffers, record: RequestRecord) -> None:
        self._services = services
        self._buffers = buffers
        self._exchange = record

    async def read(self, body: SearchBody, num_tops: int) -> list[Hole | Dead]:
        """Dead are those that nothing can fill. Raises InvalidRequest: which one, and why.

        By one that fails the group the checks of the others end, too.
        """
        indices = range(len(body.holes))
        checks = [asyncio.ensure_future(self._hole(body, each, num_tops)) for each in indices]
        try:
            return await asyncio.gather(*checks)
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    async def _hole(self, body: SearchBody, index: int, num_tops: int) -> Hole | Dead:
        try:
            return await self._checked(body, body.holes[index], num_tops)
        except ConstraintRefused as error:
            if error.reason in _MEANINGLESS:
                raise _within(error, index) from error
            return Dead(error)
        except InvalidRequest as error:
            raise _within(error, index) from error

    async def _checked(self, body: SearchBody, hole: HoleBody, num_tops: int) -> Hole:
        services = self._services
        prompt = await services.prompts.read(hole, self._buffers)
        asked = GenerateBody.model_construct(
            max_tokens=hole.max_tokens,
            constraint=hole.constraint,
            stop=hole.stop,
            include_stop=hole.include_stop,
            top_logprobs=num_tops,
            num_steps=1,
            logit_bias=body.logit_bias,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            timeout_s=body.timeout_s,
        )
        raw = raw_of(asked, prompt, services.info.limits, version=2)
        request = await services.validator.check(
            self._exchange, prompt.content, raw, add_special_tokens=prompt.add_special_tokens
        )
        return Hole(request, hole.is_last)


def placeable(holes: Iterable[Hole | Dead]) -> tuple[Hole, ...]:
    """The holes with their numbers, where some have no beams since nothing can fill them.

    Empty if that is so of all.
    """
    every = list(holes)
    spare = next((each for each in every if isinstance(each, Hole)), None)
    if spare is None:
        return ()
    return tuple(each if isinstance(each, Hole) else spare for each in every)


def hole_at(holes: list[Hole | Dead], number: int, place: str) -> Hole | Dead:
    """The hole of this number. Raises InvalidRequest at `place`, which names it."""
    if number >= len(holes):
        rule = f"must be less than {len(holes)}, the number of `holes`"
        raise InvalidRequest(f"`{place}.hole` {rule}. Given: {number}", f"{place}.hole")
    return holes[number]


def check_output(output: tuple[int, ...], max_len: int, limits: Limits, field: str) -> None:
    """Of at most `max_len` tokens, none of which ends it. Raises InvalidRequest."""
    if len(output) > max_len:
        rule = f"must have fewer tokens than the hole may have, which is {max_len + 1}"
        raise InvalidRequest(f"`{field}` {rule}. Given: {len(output)} tokens", field)
    last_id = limits.vocab_size - 1
    for token_id in output:
        if not 0 <= token_id <= last_id:
            rule = f"must be of token ids between 0 and {last_id}"
            raise InvalidRequest(f"`{field}` {rule}. Given: {token_id}", field)
        if token_id in limits.eos_token_ids:
            rule = "must be of an output that has not ended"
            raise InvalidRequest(f"`{field}` {rule}. Given: the end token {token_id}", field)


def _within(error: InvalidRequest, index: int) -> InvalidRequest:
    """The same, saying which hole it is about."""
    place = f"holes[{index}]"
    field = place if error.field is None else f"{place}.{error.field}"
    message = f"`{place}`: {error}"
    if isinstance(error, ConstraintRefused):
        return ConstraintRefused(message, error.reason, error.details, field)
    return InvalidRequest(message, field)
