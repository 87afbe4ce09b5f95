"""The OpenAPI document: bodies are read by hand, so it is told what they are.

FastAPI documents what it parses itself; here routes name their schema with `describe`, and
`document` adds the schemas.
"""

from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi
from pydantic.json_schema import models_json_schema

from router.http.body import Schema

_REF = "#/components/schemas/{model}"
_FAILURES = {
    400: "The body is not valid JSON",
    413: "The body is too large",
    415: "The body is not JSON",
    422: "A parameter breaks a rule",
    424: "The generation failed",
    429: "Too many requests",
    500: "A bug",
    503: "Not ready, or shutting down",
}


def describe(body: type[Schema]) -> dict[str, Any]:
    """Arguments of `add_api_route` for a route that reads `body`."""
    content = {"application/json": {"schema": {"$ref": _REF.format(model=body.__name__)}}}
    return {
        "openapi_extra": {"requestBody": {"required": True, "content": content}},
        "responses": {status: {"description": text} for status, text in _FAILURES.items()},
    }


def document(app: FastAPI, bodies: list[type[Schema]]) -> dict[str, Any]:
    """The OpenAPI document of `app`, with the schemas of `bodies`."""
    _, definitions = models_json_schema(
        [(body, "validation") for body in bodies], ref_template=_REF
    )
    spec = get_openapi(
        title=app.title,
        version=app.version,
        description=app.description,
        license_info=app.license_info,
        routes=app.routes,
    )
    schemas = spec.setdefault("components", {}).setdefault("schemas", {})
    schemas.update(definitions["$defs"])
    return spec
