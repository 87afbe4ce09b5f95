"""One BEAMS stream: a beam search, from the fields of its frame to its last object.

    fields -> GroupReader -> BeamGroup -> BeamRun -> BEAMS* DONE

The holes of a frame are checked at the same time, its beams one by one.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import TypeAlias

from router.engine.beam_search import (
    KEPT_TEXTS_PER_BEAM,
    Beam,
    BeamGroup,
    BeamRun,
    BeamScoring,
    BeamUsage,
    DeadEnd,
    Hole,
    OutputTexts,
    Place,
    SearchEnd,
    SearchOutcome,
)
from router.http.errors import HttpError
from router.http.lmtp.frames import (
    BeamFields,
    BeamsFields,
    Frame,
    GenerateFields,
    HoleFields,
    Message,
    as_json,
    error_fields,
)
from router.http.lmtp.generate import MAX_TOP_LOGPROBS, raw_params, usage_fields
from router.http.lmtp.streams import QueueNotices, SendMessages, StreamContext
from router.request.errors import ConstraintRefused, InvalidRequest, RouterError
from router.request.parameters import Limits

DroppedBeam: TypeAlias = tuple[Place, RouterError | None]

# Tokens that end a hole may come before the `width` that go on: a model has at most so many.
_MAX_END_TOKENS = 8
# Constraints refused for these reasons are mistakes of the request. Refused for another one, such
# as a contradiction, they make one beam impossible.
_MISTAKES = ("malformed", "not_enforced")


class GroupReader:
    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._services = context.services

    async def read(self, body: BeamsFields) -> tuple[BeamGroup, Sequence[DroppedBeam]]:
        """The group, without the beams whose holes nothing can fill, and these.

        Raises InvalidRequest, which names the hole or beam that it is about, and HttpError (404)
        for another model.
        """
        adapter_id = self._services.models.find(body.model).adapter_id
        fields = [BeamFields()] if body.beams is None else body.beams
        self._check_numbers(body, fields)
        holes = await self._holes(body, adapter_id)
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

    async def _holes(self, body: BeamsFields, adapter_id: int | None) -> list[Hole | DeadEnd]:
        """All holes. The first that is refused ends the checks of the others."""
        num_tops = min(2 * body.width + _MAX_END_TOKENS, MAX_TOP_LOGPROBS)
        checks = [
            asyncio.ensure_future(self._hole(body, index, num_tops, adapter_id))
            for index in range(len(body.holes))
        ]
        try:
            return await asyncio.gather(*checks)
        finally:
            for check in checks:
                check.cancel()
            await asyncio.gather(*checks, return_exceptions=True)

    async def _hole(
        self, body: BeamsFields, index: int, num_tops: int, adapter_id: int | None
    ) -> Hole | DeadEnd:
        try:
            return await self._checked_hole(body, body.holes[index], num_tops, adapter_id)
        except ConstraintRefused as error:
            if error.reason in _MISTAKES:
                raise _about_hole(error, index) from error
            return DeadEnd(error)
        except InvalidRequest as error:
            raise _about_hole(error, index) from error

    async def _checked_hole(
        self, body: BeamsFields, hole: HoleFields, num_tops: int, adapter_id: int | None
    ) -> Hole:
        services = self._services
        prompt = await services.prompts.read(hole)
        prompt.check_has_no_images()
        fields = GenerateFields.model_construct(
            max_tokens=hole.max_tokens,
            constraint=hole.constraint,
            stop=hole.stop,
            include_stop=hole.include_stop,
            top_logprobs=num_tops,
            logit_bias=body.logit_bias,
            repetition_penalty=body.repetition_penalty,
            presence_penalty=body.presence_penalty,
            frequency_penalty=body.frequency_penalty,
            timeout_s=body.timeout_s,
        )
        raw = raw_params(fields, prompt, services.info.limits, version=2)
        raw = replace(raw, adapter_id=adapter_id)
        request = await services.validator.check(
            self._context.record, prompt.content, raw, add_special_tokens=prompt.add_special_tokens
        )
        if request.constraint is not None and request.constraint.is_judged_at_end:
            rule = "must not be a lenient schema, of which masks keep a part only"
            raise InvalidRequest(f"`constraint` {rule}", "constraint")
        return Hole(replace(request, pause_after=1), hole.is_last)

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


class BeamStream:
    """One beam search.

    `_refused`: beams whose holes nothing can fill, dropped before the search.
    """

    def __init__(self, context: StreamContext) -> None:
        self._context = context
        self._services = context.services
        self._run: BeamRun | None = None
        self._refused: Sequence[DroppedBeam] = ()
        self._num_considered = 0

    async def run(self, frame: Frame, send: SendMessages) -> list[Message]:
        """Searches; the outcome is the end. Raises RouterError, HttpError for `fail`."""
        body = await self._services.read(frame, BeamsFields)
        group, self._refused = await GroupReader(self._context).read(body)
        self._num_considered = group.num_considered
        if not group.beams:
            return self._done(SearchOutcome(reason=SearchEnd.COMPLETE))
        num_kept = KEPT_TEXTS_PER_BEAM * group.width
        texts = OutputTexts(self._services.prompts.tokenizer, num_kept)
        run = self._run = self._services.infer.search_beams(group, texts, body.report_s)
        notices = QueueNotices(self._context, lambda: run.place)
        try:
            while (outcome := await run.next()) is None:
                notices.started()
                await send([("BEAMS", self._report(run, texts))])
            notices.started()
            return self._done(outcome)
        finally:
            notices.close()
            run.close()
            self._record_usage(run)

    def fail(self, error: RouterError | HttpError) -> list[Message]:
        return self._context.error(error)

    def cancelled(self) -> list[Message]:
        """The state of the search, empty if it has not started."""
        if self._run is None:
            return self._done(SearchOutcome(reason=SearchEnd.CANCELLED))
        return self._done(self._run.search.outcome(SearchEnd.CANCELLED))

    def _record_usage(self, run: BeamRun) -> None:
        self._context.record.num_cached_tokens = run.usage.num_cached_tokens
        self._context.record.num_generated_tokens = run.usage.num_output_tokens
        self._services.metrics.beam_steps.inc(amount=run.num_steps)

    def _report(self, run: BeamRun, texts: OutputTexts) -> str:
        outcome = run.search.outcome(SearchEnd.COMPLETE)
        holes = run.group.holes
        beams = [
            {
                **_beam_fields(place.beam),
                "text": texts.shown(holes[place.beam.hole], place.beam.output_ids),
            }
            for place in outcome.beams
        ]
        fields = {"stream_id": self._context.stream_id, "beams": beams}
        return as_json(fields | {"ended": _ended_fields(outcome)})

    def _done(self, outcome: SearchOutcome) -> list[Message]:
        self._context.record.finish_reasons.append(outcome.reason.value)
        self._services.metrics.beam_groups.inc(outcome.reason.value)
        dropped = [*self._refused, *outcome.dropped]
        fields: dict[str, object] = {
            "stream_id": self._context.stream_id,
            "finish_reason": outcome.reason.value,
            "beams": [_place_fields(place) for place in outcome.beams],
            "ended": _ended_fields(outcome),
            "dropped": [_dropped_fields(place, error) for place, error in dropped],
        }
        if outcome.candidates is not None:
            fields["candidates"] = [_place_fields(place) for place in outcome.candidates]
            fields["has_more"] = outcome.has_more
            fields["num_considered"] = self._num_considered
        usage = BeamUsage() if self._run is None else self._run.usage
        fields["usage"] = usage_fields(
            usage.num_prompt_tokens, usage.num_cached_tokens, usage.num_output_tokens
        )
        return [("DONE", as_json(fields))]


def _beam_fields(beam: Beam) -> dict[str, object]:
    return {
        "hole": beam.hole,
        "output": beam.output_ids,
        "logprob": beam.logprob,
        "num_tokens": beam.num_tokens,
        "output_logprob": beam.output_logprob,
    }


def _place_fields(place: Place) -> dict[str, object]:
    fields = _beam_fields(place.beam)
    if place.closed is not None:
        fields |= {"is_ended": True, "text": place.closed.text}
    return fields


def _ended_fields(outcome: SearchOutcome) -> list[dict[str, object]]:
    return [{**_place_fields(place), "score": score} for place, score in outcome.ended]


def _dropped_fields(place: Place, error: RouterError | None) -> dict[str, object]:
    fields = _place_fields(place)
    if error is not None:
        fields |= error_fields(error)
    elif place.closed is not None:
        fields["constraint_satisfied"] = False
    return fields
