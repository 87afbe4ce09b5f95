"""/v1/load_lora_adapter and /v1/unload_lora_adapter, as vLLM has them, for who runs the server.

A path in a body has the server read its own disk. So there must be folders from which adapters may
be loaded, links are followed before they are compared with these, and there is a key of its own.
"""

import asyncio
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from pydantic import Field
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response

from router.engine.adapters import CONFIG_NAME, Adapters
from router.http.errors import HttpError
from router.http.schema import Schema, SchemaReader
from router.http.server.auth import LOAD_PATH, UNLOAD_PATH, KeyRing, require_admin
from router.http.server.docs import ApiRoute, RouteDocs, Tag
from router.request.errors import NoAdapter, quoted, wrong

_FAILURES = {
    403: "Adapters are not loaded at run time here",
    404: "There is no such adapter",
}


class LoadAdapterBody(Schema):
    """`lora_path`: a folder in PEFT's format, absolute, or below one of --lora-folders."""

    names_unknown = True

    lora_name: str = Field(json_schema_extra={"minLength": 1})
    lora_path: str = Field(json_schema_extra={"minLength": 1})


class UnloadAdapterBody(Schema):
    """The name under which it was loaded."""

    names_unknown = True

    lora_name: str


class AdapterRoutes:
    """`folders` are resolved; none: nothing is loaded at run time. `admins` has the key for it."""

    def __init__(
        self, adapters: Adapters, bodies: SchemaReader, folders: Sequence[Path], admins: KeyRing
    ) -> None:
        self._adapters = adapters
        self._bodies = bodies
        self._folders = folders
        self._admins = admins

    def routes(self) -> list[ApiRoute]:
        docs = partial(
            RouteDocs, tag=Tag.OPERATIONS, answer=str, media_type="text/plain", failures=_FAILURES
        )
        load = docs(summary="Load a LoRA adapter", body=LoadAdapterBody)
        unload = docs(summary="Unload a LoRA adapter", body=UnloadAdapterBody)
        return [
            ApiRoute("POST", LOAD_PATH, self.load, load, "load_lora_adapter"),
            ApiRoute("POST", UNLOAD_PATH, self.unload, unload, "unload_lora_adapter"),
        ]

    async def load(self, request: Request) -> Response:
        """Load a LoRA adapter, for requests that name it; needs the admin key."""
        self._admit(request)
        body = await self._bodies.read(request, LoadAdapterBody)
        path = await asyncio.to_thread(allowed_folder, self._folders, body.lora_path)
        await self._adapters.load(body.lora_name, str(path))
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' added successfully.")

    async def unload(self, request: Request) -> Response:
        """Take a LoRA adapter's name away; requests that have begun end. Needs the admin key."""
        self._admit(request)
        body = await self._bodies.read(request, UnloadAdapterBody)
        await self._adapters.unload(body.lora_name)
        return PlainTextResponse(f"Success: LoRA adapter '{body.lora_name}' removed successfully.")

    def _admit(self, request: Request) -> None:
        if not self._folders:
            raise HttpError(
                403,
                "not_allowed",
                "adapters are loaded at the start alone; --lora-folders names those from which "
                "more may be loaded",
            )
        require_admin(request.headers.raw, self._admins)


def allowed_folder(folders: Sequence[Path], path: str) -> Path:
    """The adapter's folder, below one of `folders`, links followed.

    Raises InvalidRequest for any other place, whatever there is, and NoAdapter.
    """
    inside = []
    for folder in folders:
        try:
            found = (folder / path).resolve()
        except (OSError, RuntimeError, ValueError):
            # Links in a circle, or a character that no path has.
            continue
        if found.is_relative_to(folder):
            inside.append(found)
    if not inside:
        raise wrong("lora_path", "must be in one of the folders of --lora-folders", path)
    reason = f"no {CONFIG_NAME} is there"
    for found in inside:
        try:
            if (found / CONFIG_NAME).is_file():
                return found
        except OSError as error:
            # Too long, or not ours to look into.
            reason = error.strerror or str(error)
    raise NoAdapter(f"No adapter found for {quoted(path)}: {reason}", "lora_path")
