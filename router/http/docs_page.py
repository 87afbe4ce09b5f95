"""/docs: Swagger UI over the OpenAPI document, and a plain list of the routes without it.

Swagger UI's scripts come from a public network, as FastAPI has it. Where the browser cannot
reach that, the list stays, which needs nothing from elsewhere.
"""

from html import escape
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.docs import get_swagger_ui_html
from starlette.responses import HTMLResponse

_PLACE = '<div id="swagger-ui">'


def add_docs(app: FastAPI) -> None:
    """Serves the page at /docs."""

    async def docs() -> HTMLResponse:
        return HTMLResponse(page(app.openapi(), str(app.openapi_url)))

    app.add_api_route("/docs", docs, methods=["GET"], include_in_schema=False)


def page(spec: dict[str, Any], url: str) -> str:
    """The page for a document that is served at `url`; Swagger UI takes the place of the list."""
    title = str(spec["info"]["title"])
    swagger = get_swagger_ui_html(openapi_url=url, title=title, swagger_favicon_url="data:,")
    html = bytes(swagger.body).decode()
    assert _PLACE in html, "FastAPI's page has another place for Swagger UI"
    return html.replace(_PLACE, _PLACE + _list(spec, url), 1)


def _list(spec: dict[str, Any], url: str) -> str:
    rows = [
        f"<tr><td>{method.upper()}</td><td><code>{escape(path)}</code></td>"
        f"<td>{escape(str(operation.get('description', '')))}</td></tr>"
        for path, operations in sorted(spec["paths"].items())
        for method, operation in operations.items()
    ]
    title = f"{spec['info']['title']} {spec['info']['version']}"
    return (
        f"<h1>{escape(title)}</h1><p>Swagger UI comes from cdn.jsdelivr.net; until it is there, "
        f'or if it cannot be, here is the list. The whole document: <a href="{escape(url)}">'
        f"{escape(url)}</a></p><table>{''.join(rows)}</table>"
    )
