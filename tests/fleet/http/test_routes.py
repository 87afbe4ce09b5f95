"""Which requests are passed on: the router's own, as its document has them."""

import pytest

from fleet.http.front import is_of_loaded_model, methods_of
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
    ("path", "methods", "is_of_loaded"),
    [
        ("/generate", {"POST"}, False),
        ("/v1/responses/resp_1", {"GET", "HEAD", "DELETE"}, True),
        ("/v1/responses/input_tokens", {"POST"}, False),
        ("/api-doc/openapi.json", {"GET", "HEAD"}, True),
        ("/wp-login.php", set(), False),
    ],
)
def test_a_path_says_which_model_may_answer(
    path: str, methods: set[str], is_of_loaded: bool
) -> None:
    assert (methods_of(path), is_of_loaded_model(path)) == (methods, is_of_loaded)
