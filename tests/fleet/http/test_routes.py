"""Which requests are passed on: the router's own, as its document has them."""

import pytest

from fleet.http.routes import ModelSource, find_route, methods_of
from router.http.app import openapi_without_server

PATHS = openapi_without_server("0.0.1")["paths"]
# The front answers these GET routes itself.
FRONT_ROUTES = {
    "/",
    "/ping",
    "/info",
    "/metrics",
    "/health",
    "/health/live",
    "/health/ready",
    "/health/progress",
    "/v1/models",
    "/v1/models/{model_name}",
}


@pytest.mark.parametrize("path", PATHS)
def test_every_route_of_the_router_is_passed_on_or_answered_by_the_front(path: str) -> None:
    methods = {method.upper() for method in PATHS[path]}
    if path in FRONT_ROUTES:
        methods -= {"GET"}
    concrete = path.replace("{response_id}", "resp_1")
    assert methods_of(concrete) - {"HEAD"} == methods


@pytest.mark.parametrize(
    ("method", "path", "source"),
    [
        ("POST", "/generate", ModelSource.BODY),
        ("GET", "/generate", None),
        ("DELETE", "/v1/responses/resp_1", ModelSource.LOADED),
        ("POST", "/v1/responses/input_tokens", ModelSource.BODY),
        ("GET", "/wp-login.php", None),
    ],
)
def test_a_route_says_where_the_model_is_named(
    method: str, path: str, source: ModelSource | None
) -> None:
    assert find_route(method, path) is source
