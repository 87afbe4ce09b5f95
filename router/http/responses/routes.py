"""/v1/responses: items in, a response or its events out; made, read again, gone on from, forgotten.

What may be read again is for who made it: requests with the same credentials.
"""

import re
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from functools import partial
from hashlib import blake2b
from typing import Any

import orjson
from starlette.convertors import StringConvertor, register_url_convertor
from starlette.requests import Request
from starlette.responses import Response

from router.http.answers import new_id
from router.http.bodies import json_response
from router.http.conversation import AnswerFrames, AnswerService, Rendered, Turn
from router.http.errors import Dialect, HttpError
from router.http.logprobs import ChatLogprobs, TokenNames
from router.http.request_record import RequestRecord
from router.http.responses.reply import Output, Reply, ResponseEncoder, status_of
from router.http.responses.schema import (
    CountInputBody,
    Item,
    LeftOut,
    Reference,
    ResponseBody,
    check_outputs,
    turns_of,
)
from router.http.responses.store import (
    MAX_ENDED,
    BackgroundResponse,
    Job,
    Jobs,
    LogResponse,
    ResponseStore,
    Stored,
)
from router.http.resumption import EventsGone, Reader
from router.http.server.docs import ApiRoute, RouteDocs, Tag
from router.http.sse import EventStream
from router.request.errors import InvalidRequest, TemplateFailed, wrong
from router.request.request import Event

_PATH = "/v1/responses"
_NUMBER = re.compile(r"-1|\d{1,9}", re.ASCII)
_UNKNOWN = {404: "The model is not served, or the response not known, or not any more"}
# The codes of what is not known, by the field that names it.
_NOT_FOUND = {
    "response_id": "response_not_found",
    "previous_response_id": "previous_response_not_found",
}

_RESPONSE = {
    "type": "object",
    "description": "OpenAI's Response object",
    "required": ["id", "object", "created_at", "status", "model", "output", "usage"],
}
_EVENT = {
    "type": "object",
    "description": "An event of OpenAI's, by its type",
    "required": ["type", "sequence_number"],
}
_COUNT = {"type": "object", "required": ["object", "input_tokens"]}
_DELETED = {"type": "object", "required": ["id", "object", "deleted"]}


class _ResponseId(StringConvertor):
    """Ids of responses in paths, which no other path below theirs can be."""

    regex = "resp_[^/]*"


class ResponseRoutes:
    """The routes of Responses. They own the store, which `create` fills, and the jobs."""

    def __init__(self, service: AnswerService, names: TokenNames, store: ResponseStore) -> None:
        self._service = service
        self._names = names
        self._store = store
        self._jobs = Jobs()

    def routes(self) -> list[ApiRoute]:
        register_url_convertor("response", _ResponseId())
        one = _PATH + "/{response_id:response}"
        docs = partial(RouteDocs, tag=Tag.RESPONSES, failures=_UNKNOWN)
        create = docs(
            summary="Make a response",
            body=ResponseBody,
            answer=_RESPONSE,
            events=_EVENT,
            generates=True,
        )
        count = docs(summary="Count an input's tokens", body=CountInputBody, answer=_COUNT)
        retrieve = docs(summary="Look at a response", answer=_RESPONSE)
        delete = docs(summary="Delete a response", answer=_DELETED)
        cancel = docs(summary="Cancel a response", answer=_RESPONSE)
        return [
            ApiRoute("POST", _PATH, self.create, create),
            ApiRoute("POST", f"{_PATH}/input_tokens", self.count, count),
            ApiRoute("GET", one, self.retrieve, retrieve),
            ApiRoute("DELETE", one, self.delete, delete),
            ApiRoute("POST", f"{one}/cancel", self.cancel, cancel),
        ]

    async def create(self, request: Request) -> Response:
        """Answer the input, whole or as server-sent events."""
        service = self._service
        record = service.validator.begin(request)
        body = await service.read(request, ResponseBody, self._admit)
        model = service.models.find(body.model)
        raw = replace(body.to_raw(service.limits), adapter_id=model.adapter_id)
        given = self._given(request, body)
        prompt = await self._prompt(request, body, given, body.max_output_tokens or 1)
        checked, reading = await service.check(record, prompt, raw, body.allowed_tools)
        response_id = f"resp_{new_id(record.ids)}"
        defaults = service.limits.sampling_defaults
        reply = Reply(response_id, int(record.asked_s), model.name, body, defaults)
        logprobs = None
        if body.has_logprobs:
            logprobs = ChatLogprobs(self._names, body.top_logprobs or 0)
        output = Output(
            reading, logprobs, record.ids, shows_encrypted=body.shows_encrypted_thoughts
        )

        def keep(response: dict[str, Any], status: str) -> None:
            is_kept = status in ("completed", "incomplete") or body.background
            if body.is_stored and is_kept:
                answered = output.items(status if status == "completed" else "incomplete")
                stored = Stored(orjson.dumps(response), given, answered, body.previous_response_id)
                self._store.keep(_owner(request), response_id, stored)

        if body.stream or body.background:
            job = Job(reply, output, keep) if body.background else None
            if job is not None:
                record.moving = None  # no front reads it as it is made
            encoder = ResponseEncoder(reply, output, keep if job is None else job.keep)
            frames = AnswerFrames(record, encoder, Dialect.OPENAI)
            stream = await service.stream(record, [checked], frames)
            return stream if job is None else self._in_background(request, job, response_id, stream)
        (completion,) = await service.complete(request, [checked])
        output.whole(completion.tokens, completion.finished)
        end = output.settled(completion.finished)
        fields = output.fields(status_of(end))
        response = reply.ended(end, fields, int(time.time()), output.num_thought_tokens)
        keep(response, status_of(end))
        return service.reply(record, response, record.num_generated_tokens)

    async def count(self, request: Request) -> Response:
        """How many tokens the same input would have as a prompt."""
        body = await self._service.read(request, CountInputBody, self._admit)
        prompt = await self._prompt(request, body, self._given(request, body), 1)
        num_tokens = await self._service.count(RequestRecord.of(request), prompt, "input")
        return json_response({"object": "response.input_tokens", "input_tokens": num_tokens})

    async def retrieve(self, request: Request) -> Response:
        """A response that was made before, or is being made; its events where they are kept."""
        response_id = request.path_params["response_id"]
        if request.query_params.get("stream", "false").lower() not in ("", "false", "0"):
            return LogResponse(self._reader(request, response_id))
        job = self._jobs.running(_owner(request), response_id)
        if job is not None:
            return json_response(job.fields())
        return Response(self._known(request).response, media_type="application/json")

    async def cancel(self, request: Request) -> Response:
        """End a response that is being made in the background; one that has ended stays."""
        response_id = request.path_params["response_id"]
        job = self._jobs.running(_owner(request), response_id)
        if job is not None:
            await job.cancel()
        response = self._known(request).response
        if not orjson.loads(response)["background"]:
            message = f"Response `{response_id[:100]}` was not created with `background`"
            raise InvalidRequest(message, "response_id")
        return Response(response, media_type="application/json")

    async def delete(self, request: Request) -> Response:
        """Forget a response; what went on from it cannot be gone on from any more."""
        owner = _owner(request)
        response_id = request.path_params["response_id"]
        job = self._jobs.running(owner, response_id)
        if job is not None:
            await job.cancel()
        self._jobs.forget(owner, response_id)
        if not self._store.forget(owner, response_id):
            raise _not_found("Response", response_id, "response_id")
        return json_response({"id": response_id, "object": "response", "deleted": True})

    def _in_background(
        self, request: Request, job: Job, response_id: str, stream: EventStream[Event]
    ) -> Response:
        """The answer to who wants a response made, while it is made."""
        self._jobs.add(_owner(request), response_id, job)
        if job.log is None:
            return BackgroundResponse(json_response(job.fields()), job, stream)
        return BackgroundResponse(LogResponse(job.log.attach(0)), job, stream)

    def _reader(self, request: Request, response_id: str) -> Reader:
        """Who reads a response's events behind one. Raises HttpError, InvalidRequest."""
        after = request.query_params.get("starting_after", "-1")
        if not _NUMBER.fullmatch(after):
            raise wrong("starting_after", "must be the number of an event", after)
        log = self._jobs.log(_owner(request), response_id)
        if log is None:
            self._known(request)
            raise InvalidRequest(
                f"`stream` is for responses created with `background` and `stream`, of which the "
                f"last {MAX_ENDED} can be read so; ask for this one without it",
                "stream",
            )
        try:
            return log.attach(int(after) + 1)
        except EventsGone as gone:
            raise InvalidRequest(
                f"`starting_after` must be at least {gone.first - 1}: the events before are not "
                f"kept any more. Given: {after}",
                "starting_after",
            ) from gone

    def _admit(self, body: CountInputBody) -> None:
        """Raises HttpError for another model, InvalidRequest for what cannot be served."""
        self._service.models.find(body.model)
        body.check()

    async def _prompt(
        self, request: Request, body: CountInputBody, given: Sequence[Item], num_new_tokens: int
    ) -> Rendered:
        """The instructions, what was said before, and what is said now, as a prompt."""
        service = self._service
        record = RequestRecord.of(request)
        history = self._history(request, body.previous_response_id)
        check_outputs(history, given)
        turns: Sequence[Turn] = turns_of([*history, *given])
        if body.instructions:
            turns = [Turn("system", body.instructions), *turns]

        async def render(turns: Sequence[Turn]) -> Rendered:
            try:
                return await service.render(record, lambda: body.chat_prompt(turns))
            except TemplateFailed as error:
                raise TemplateFailed(str(error), "input") from error

        async def count(turns: Sequence[Turn]) -> int:
            return await service.count(record, await render(turns), "input")

        if body.truncation == "auto":
            limits = service.limits
            max_len = min(limits.max_input_len, limits.max_total_len - num_new_tokens)
            turns = await fit(turns, max_len, count)
        return await render(turns)

    def _given(self, request: Request, body: CountInputBody) -> tuple[Item, ...]:
        """The input, its references followed. Raises HttpError for one to what is not known."""
        given: list[Item] = []
        for index, item in enumerate(body.input):
            if isinstance(item, LeftOut):
                continue
            if isinstance(item, Reference):
                found = self._store.item(_owner(request), item.item_id)
                if found is None:
                    raise _not_found("Item", item.item_id, f"input[{index}].id")
                item = found
            given.append(item)
        return tuple(given)

    def _known(self, request: Request) -> Stored:
        response_id = request.path_params["response_id"]
        stored = self._store.get(_owner(request), response_id)
        if stored is None:
            raise _not_found("Response", response_id, "response_id")
        return stored

    def _history(self, request: Request, previous_id: str | None) -> tuple[Item, ...]:
        """What was said up to a response. Raises HttpError if a part of it is not known."""
        if previous_id is None:
            return ()
        if self._jobs.running(_owner(request), previous_id) is not None:
            message = f"Response `{previous_id[:100]}` is still being made"
            raise InvalidRequest(message, "previous_response_id")
        try:
            return self._store.conversation(_owner(request), previous_id)
        except KeyError as error:
            raise _not_found("Response", error.args[0], "previous_response_id") from error


def _owner(request: Request) -> bytes:
    """A digest of the client's credentials, so that no key is kept in memory."""
    return blake2b(request.headers.get("authorization", "").encode(), digest_size=16).digest()


def _not_found(what: str, wanted_id: str, field: str) -> HttpError:
    place = "" if field == "response_id" else f"`{field}`: "
    return HttpError(
        404,
        _NOT_FOUND.get(field, "item_not_found"),
        f"{place}{what} `{wanted_id[:100]}` is not known: it was never stored, was deleted, or is "
        "forgotten, since responses are kept in memory and within bounds",
        field=field,
    )


_LEADING = ("system", "developer")


async def fit(
    turns: Sequence[Turn], max_len: int, count: Callable[[Sequence[Turn]], Awaitable[int]]
) -> Sequence[Turn]:
    """The longest end of the conversation that has at most `max_len` tokens as a prompt.

    What the system says first stays, and what is left begins with a turn of the user's, since many
    templates want one there. If nothing fits, the last such end. `count` gives a prompt's length.
    """
    head_len = next((i for i, turn in enumerate(turns) if turn.role not in _LEADING), len(turns))
    head = turns[:head_len]
    later = [i for i in range(head_len + 1, len(turns)) if turns[i].role == "user"]
    starts = [head_len, *later]
    low = 0
    high = len(starts) - 1
    # Most conversations fit as they are; among the others, each shorter end is a shorter prompt.
    middle = low
    while low < high:
        if await count([*head, *turns[starts[middle] :]]) <= max_len:
            high = middle
        else:
            low = middle + 1
        middle = (low + high) // 2
    return [*head, *turns[starts[low] :]]
