"""The page at / for browsers, and the API's at /docs: files that `make web` builds from web/.

They hold nothing of the served model, so they are sent to anyone; what they ask the API for needs a
key like any other request. Paths in them are relative: a proxy may put the server below a prefix.
"""

import asyncio
import gzip
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import MappingProxyType

from starlette.requests import Request
from starlette.responses import Response

from router.http.errors import HttpError
from router.http.server.docs import ApiRoute

BUNDLE = Path(__file__).parent / "bundle"
DOCS_PATH = "/docs"
ASSETS_PATH = "/assets/"
_MEDIA_TYPES: Mapping[str, str] = MappingProxyType(
    {
        ".html": "text/html; charset=utf-8",
        ".js": "text/javascript; charset=utf-8",
        ".css": "text/css; charset=utf-8",
    }
)
# Scripts and styles of this server alone, and no place to send anything but to it (CSP, level 3).
_POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
_PAGE_HEADERS: Mapping[str, str] = MappingProxyType({"content-security-policy": _POLICY})
_HEADERS: Mapping[str, str] = MappingProxyType(
    {
        "cache-control": "no-cache",
        "referrer-policy": "no-referrer",
        "x-content-type-options": "nosniff",
    }
)


@dataclass(frozen=True, slots=True)
class _File:
    """A file of the bundle, as it is and compressed. `etag` is of its content."""

    content: bytes
    compressed: bytes
    etag: str
    media_type: str


def is_page(method: str, path: str) -> bool:
    """Whether a request is for a file of a page; / itself is a probe's path."""
    return method in ("GET", "HEAD") and (path == DOCS_PATH or path.startswith(ASSETS_PATH))


def wants_page(request: Request) -> bool:
    """Whether who asks is a browser; probes, which take anything, get a status alone."""
    return "text/html" in request.headers.get("accept", "")


def page_routes() -> list[ApiRoute]:
    """The routes but /, which answers probes as well."""
    return [ApiRoute("GET", DOCS_PATH, docs), ApiRoute("GET", ASSETS_PATH + "{name}", asset)]


async def page(request: Request) -> Response:
    return await _answer(request, "index.html", _PAGE_HEADERS)


async def docs(request: Request) -> Response:
    """The operations of the OpenAPI document, and a form for each that sends it."""
    return await _answer(request, "docs.html", _PAGE_HEADERS)


async def asset(request: Request) -> Response:
    """A script or a style of either page."""
    name = request.scope["path"].removeprefix(ASSETS_PATH)
    if name not in _asset_names():
        raise HttpError(404, "not_found", f"there is nothing at {ASSETS_PATH}{name[:200]}")
    return await _answer(request, f"assets/{name}", {})


async def _answer(request: Request, name: str, headers: Mapping[str, str]) -> Response:
    file = await asyncio.to_thread(_read, name)
    sent = {**_HEADERS, **headers, "etag": file.etag, "vary": "accept, accept-encoding"}
    if request.headers.get("if-none-match") == file.etag:
        return Response(status_code=304, headers=sent)
    content = file.content
    if "gzip" in request.headers.get("accept-encoding", ""):
        content = file.compressed
        sent["content-encoding"] = "gzip"
    return Response(content, headers={**sent, "content-type": file.media_type})


@cache
def _asset_names() -> frozenset[str]:
    return frozenset(path.name for path in (BUNDLE / "assets").iterdir())


@cache
def _read(name: str) -> _File:
    path = BUNDLE / name
    content = path.read_bytes()
    etag = f'"{sha256(content).hexdigest()[:16]}"'
    return _File(content, gzip.compress(content, mtime=0), etag, _MEDIA_TYPES[path.suffix])
