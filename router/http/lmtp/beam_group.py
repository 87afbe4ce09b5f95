"""The fields of BEAMS as a BeamGroup: its holes checked at the same time, its beams one by one."""

import asyncio
from collections.abc import Sequence
from typing import TypeAlias

from router.engine.beam_search.types import Beam, BeamGroup, BeamScoring, DeadEnd, Hole, Place
from router.http.lmtp.generate import MAX_TOP_LOGPROBS, raw_params
from router.http.lmtp.schema import BeamFields, BeamsFields, GenerateFields, HoleFields
from router.http.lmtp.streams import StreamContext
from router.request.errors import ConstraintRefused, InvalidRequest, RouterError
from router.request.parameters import Limits

DroppedBeam: TypeAlias = tuple[Place, RouterError | None]

# Tokens that end a hole may come before the `width` that go on: a model has at most so many.
_MAX_END_TOKENS = 8
# Constraints refused for these reasons are mistakes of the request. Refused for another one, such
# as a contradiction, they make one beam impossible.
_MISTAKES = ("malformed", "not_enforced")


class GroupReader:
    """Reads one BEAMS frame."""

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._services = context.services

    async def read(self, body: BeamsFields) -> tuple[BeamGroup, Sequence[DroppedBeam]]:
        """The group, without the beams whose holes nothing can fill, and these.

        Raises InvalidRequest, which names the hole or beam that it is about.
        """
        fields = [BeamFields()] if body.beams is None else body.beams
        self._check_numbers(body, fields)
        holes = await self._holes(body)
        beams: list[Beam] = []
        dropped: list[DroppedBeam] = []
        for index, each in enumerate(fields):
            beam = self._beam(each, f"beams[{index}]", holes)
            hole = holes[beam.hole]
            if isinstance(hole, DeadEnd):
                dropped.append((Place(beam), hole.error))
            else:
                beams.append(beam)
        group = BeamGroup(
            width=body.width,
            holes=_without_dead_ends(holes),
            beams=tuple(beams),
            end_token_ids=frozenset(self._services.info.limits.eos_token_ids),
            scoring=BeamScoring(
                length_penalty=body.length_penalty,
                early_stopping=body.early_stopping,
                max_len=body.max_len,
            ),
            ended=tuple(body.ended),
            num_candidates=body.num_candidates,
        )
        return group, dropped

    def _check_numbers(self, body: BeamsFields, beams: Sequence[BeamFields]) -> None:
        max_width = self._services.limits.max_beams
        if body.width > max_width:
            message = f"`width` must be at most {max_width} (--max-beams). Given: {body.width}"
            raise InvalidRequest(message, "width")
        for field, parts in (("holes", body.holes), ("beams", beams)):
            if len(parts) > body.width:
                raise InvalidRequest(
                    f"`{field}` must be at most as many as `width`, which is {body.width}. "
                    f"Given: {len(parts)}",
                    field,
                )

    async def _holes(self, body: BeamsFields) -> list[Hole | DeadEnd]:
        """All holes. The first that is refused ends the checks of the others."""
        num_tops = min(2 * body.width + _MAX_END_TOKENS, MAX_TOP_LOGPROBS)
        checks = [
            asyncio.ensure_future(self._hole(body, index, num_tops))
            for index in range(len(body.holes))
        ]
        try:
            return await asyncio.gather(*checks)
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    async def _hole(self, body: BeamsFields, index: int, num_tops: int) -> Hole | DeadEnd:
        try:
            return await self._checked_hole(body, body.holes[index], num_tops)
        except ConstraintRefused as error:
            if error.reason in _MISTAKES:
                raise _about_hole(error, index) from error
            return DeadEnd(error)
        except InvalidRequest as error:
            raise _about_hole(error, index) from error

    async def _checked_hole(self, body: BeamsFields, hole: HoleFields, num_tops: int) -> Hole:
        services = self._services
        prompt = await services.prompts.read(hole, self._context.buffers)
        fields = GenerateFields.model_construct(
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
        raw = raw_params(fields, prompt, services.info.limits, version=2)
        request = await services.validator.check(
            self._context.record, prompt.content, raw, add_special_tokens=prompt.add_special_tokens
        )
        if request.constraint is not None and request.constraint.is_judged_at_end:
            rule = "must not be a lenient schema, of which masks keep a part only"
            raise InvalidRequest(f"`constraint` {rule}", "constraint")
        return Hole(request, hole.is_last)

    def _beam(self, fields: BeamFields, place: str, holes: Sequence[Hole | DeadEnd]) -> Beam:
        if fields.hole >= len(holes):
            rule = f"must be less than {len(holes)}, the number of `holes`"
            field = f"{place}.hole"
            raise InvalidRequest(f"`{field}` {rule}. Given: {fields.hole}", field)
        hole = holes[fields.hole]
        if isinstance(hole, Hole):
            limits = self._services.info.limits
            _check_output(fields.output, hole.max_len - 1, limits, f"{place}.output")
        return Beam(
            hole=fields.hole,
            output_ids=fields.output,
            logprob=fields.logprob,
            num_tokens=fields.num_tokens,
            output_logprob=fields.output_logprob,
        )


def _without_dead_ends(holes: Sequence[Hole | DeadEnd]) -> tuple[Hole, ...]:
    """The holes by their numbers; another one stands for each dead end, which has no beams."""
    usable = [hole for hole in holes if isinstance(hole, Hole)]
    return tuple(hole if isinstance(hole, Hole) else usable[0] for hole in holes) if usable else ()


def _check_output(output: tuple[int, ...], max_len: int, limits: Limits, field: str) -> None:
    """At most `max_len` tokens, none of which ends the output. Raises InvalidRequest."""
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


def _about_hole(error: InvalidRequest, index: int) -> InvalidRequest:
    """The same error, with the place of the hole in its message and field."""
    place = f"holes[{index}]"
    field = place if error.field is None else f"{place}.{error.field}"
    message = f"`{place}`: {error}"
    if isinstance(error, ConstraintRefused):
        return ConstraintRefused(message, error.reason, error.details, field)
    return InvalidRequest(message, field)
