"""/v1/files and /v1/batches, as OpenAI's clients send them. A key sees its own alone."""

import re
from collections.abc import AsyncIterator, Sequence
from functools import partial

from starlette.requests import Request
from starlette.responses import Response, StreamingResponse

from router.http.batches.form import read_form
from router.http.batches.lines import ENDPOINTS
from router.http.batches.runner import BatchRunner
from router.http.batches.store import PIECE_LEN, BatchStore, Document
from router.http.bodies import BodyReader, json_response
from router.http.errors import HttpError
from router.http.schema import Schema, SchemaReader
from router.http.server.access import AccessRecord
from router.http.server.docs import FORM, ApiRoute, RouteDocs, Tag
from router.request.errors import InvalidRequest, wrong

MAX_FILE_LEN = 200_000_000
# What a form may have beside its file, and of a field what is looked at.
_MAX_FIELDS_LEN = 1 << 16
_MAX_FIELDS = 16
_MAX_FIELD_LEN = 1 << 8
_WINDOW = re.compile(r"([1-9]\d{0,2})h", re.ASCII)
_LIMIT = re.compile(r"[1-9]\d{0,4}", re.ASCII)
_MAX_LIMIT = 10_000
_FAILURES = {403: "Batches are off here", 404: "There is nothing of that id"}
_TEXT = {"type": "string"}
_FILE = {"type": "string", "contentMediaType": "application/octet-stream"}
_FORM = {"type": "object", "properties": {"file": _FILE, "purpose": {"const": "batch"}}}
_OBJECT = {"type": "object", "required": ["object"]}


class CreateBatchBody(Schema):
    """`completion_window` are hours, as in 24h; what is not computed by then expires."""

    names_unknown = True

    input_file_id: str
    endpoint: str
    completion_window: str
    metadata: dict[str, str] | None = None

    def check(self) -> None:
        """Raises InvalidRequest."""
        if self.endpoint not in ENDPOINTS:
            raise wrong("endpoint", f"must be one of {', '.join(ENDPOINTS)}", self.endpoint)
        if not _WINDOW.fullmatch(self.completion_window):
            raise wrong("completion_window", "must be hours, 1h to 999h", self.completion_window)


class BatchRoutes:
    """Routes over the runner's store; without a runner each says how batches are had."""

    def __init__(
        self, runner: BatchRunner | None, bodies: SchemaReader, reader: BodyReader
    ) -> None:
        self._runner = runner
        self._bodies = bodies
        self._reader = reader

    @property
    def store_name(self) -> str | None:
        """That of the file that keeps them, with which their ids begin; None: there are none."""
        return None if self._runner is None else self._runner.store.name

    def routes(self) -> list[ApiRoute]:
        docs = partial(RouteDocs, tag=Tag.OPENAI, failures=_FAILURES, answer=_OBJECT)
        file = "/v1/files/{id}"
        batch = "/v1/batches/{id}"
        upload = docs(summary="Upload a file", body=_FORM, body_type=FORM)
        content = docs(summary="Read a file", answer=_TEXT, media_type="application/jsonl")
        create = docs(summary="Begin a batch", body=CreateBatchBody)
        return [
            ApiRoute("POST", "/v1/files", self.upload, upload),
            ApiRoute("GET", "/v1/files", self.page, docs(summary="List the files")),
            ApiRoute("GET", file, self.look, docs(summary="Look at a file")),
            ApiRoute("DELETE", file, self.delete, docs(summary="Delete a file")),
            ApiRoute("GET", f"{file}/content", self.content, content),
            ApiRoute("POST", "/v1/batches", self.create, create),
            ApiRoute("GET", "/v1/batches", self.page, docs(summary="List the batches")),
            ApiRoute("GET", batch, self.look, docs(summary="Look at a batch")),
            ApiRoute("POST", f"{batch}/cancel", self.cancel, docs(summary="Cancel a batch")),
        ]

    async def upload(self, request: Request) -> Response:
        """Keep a file for a batch: JSON lines, each with a request."""
        store = self._batches.store
        owner = _owner(request)
        file_id: str | None = None
        chunks = self._reader.chunks(request, MAX_FILE_LEN + _MAX_FIELDS_LEN)
        waiting = bytearray()
        num_pieces = 0
        fields: dict[str, bytes] = {}
        try:
            content_type = request.headers.get("content-type", "")
            async for name, filename, content in read_form(content_type, chunks):
                if name != "file":
                    fields[name] = fields.get(name, b"")[:_MAX_FIELD_LEN] + content
                    if len(fields) > _MAX_FIELDS:
                        raise InvalidRequest(f"a form has at most {_MAX_FIELDS} fields")
                    continue
                if file_id is None:
                    file_id = await store.ask(store.add_file, owner, filename[:255])
                waiting += content
                if len(waiting) >= PIECE_LEN:
                    await store.ask(store.append, owner, file_id, num_pieces, bytes(waiting))
                    num_pieces += 1
                    waiting.clear()
            if file_id is None or fields.pop("purpose", b"") != b"batch":
                raise InvalidRequest("`file` must be there, and `purpose` be batch", "purpose")
            AccessRecord.of(request).ignore(sorted(fields))
            await store.ask(store.append, owner, file_id, num_pieces, bytes(waiting))
            await store.ask(store.complete, file_id)
        except BaseException:
            if file_id is not None:
                await store.ask(store.delete_file, owner, file_id)
            raise
        return json_response(await self._found(request, file_id))

    async def page(self, request: Request) -> Response:
        """All that are kept, the latest first."""
        store = self._batches.store
        kind = _kind(request)
        after = request.query_params.get("after")
        if after is not None:
            await self._found(request, after)
        limit = request.query_params.get("limit", "20")
        if not _LIMIT.fullmatch(limit) or int(limit) > _MAX_LIMIT:
            raise wrong("limit", f"must be a whole number from 1 to {_MAX_LIMIT}", limit)
        found = await store.ask(store.page, _owner(request), kind, after, int(limit) + 1)
        data = found[: int(limit)]
        return json_response(list_page(data, has_more=len(found) > len(data)))

    async def look(self, request: Request) -> Response:
        """What is known of it: how large a file is; how far a batch is, and its answers' files."""
        return json_response(await self._found(request))

    async def delete(self, request: Request) -> Response:
        """Forget a file; a batch that has begun with it goes on."""
        store = self._batches.store
        file = await self._found(request)
        await store.ask(store.delete_file, _owner(request), file["id"])
        return json_response({"id": file["id"], "object": "file", "deleted": True})

    async def content(self, request: Request) -> Response:
        """The lines of a file."""
        file = await self._found(request)
        content = _content(self._batches.store, file["id"])
        return StreamingResponse(content, media_type="application/jsonl")

    async def create(self, request: Request) -> Response:
        """Compute each line of a file as a request to one endpoint, behind what cannot wait."""
        runner = self._batches
        body = await self._bodies.read(request, CreateBatchBody, CreateBatchBody.check)
        window_s = 3600 * int(body.completion_window.removesuffix("h"))
        batch = await runner.store.ask(
            runner.store.add_batch,
            _owner(request),
            body.input_file_id,
            window_s,
            **body.model_dump(exclude={"input_file_id"}),
        )
        runner.wake.set()
        return json_response(batch)

    async def cancel(self, request: Request) -> Response:
        """End a batch; answers that there are stay."""
        runner = self._batches
        batch = await self._found(request)
        change = runner.store.change
        before = "validating in_progress"
        await runner.store.ask(change, batch["id"], before, status="cancelling")
        runner.wake.set()
        return json_response(await self._found(request))

    @property
    def _batches(self) -> BatchRunner:
        """Raises HttpError where there are none."""
        if self._runner is None:
            message = "files and batches are off; --batch-file names the file that keeps them"
            raise HttpError(403, "not_allowed", message)
        return self._runner

    async def _found(self, request: Request, wanted_id: str | None = None) -> Document:
        """What the path names, or `wanted_id`. Raises HttpError where there is no such thing."""
        store = self._batches.store
        wanted_id = wanted_id or request.path_params["id"]
        found = await store.ask(store.find, _owner(request), wanted_id)
        if found is None or found["object"] != _kind(request):
            raise HttpError(404, "not_found", f"there is no `{wanted_id[:100]}`")
        return found


def list_page(data: Sequence[Document], *, has_more: bool) -> Document:
    """A page of a list as OpenAI has it."""
    ends = {"first_id": data[0]["id"], "last_id": data[-1]["id"]} if data else {}
    return {"object": "list", "data": data, **ends, "has_more": has_more}


async def _content(store: BatchStore, file_id: str) -> AsyncIterator[bytes]:
    after = -1
    while pieces := await store.ask(store.pieces, file_id, after):
        after = pieces[-1][0]
        yield b"".join(content for _, content in pieces)


def _owner(request: Request) -> bytes:
    return AccessRecord.of(request).key.digest


def _kind(request: Request) -> str:
    return "file" if request.url.path.startswith("/v1/files") else "batch"
