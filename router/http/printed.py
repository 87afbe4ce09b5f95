"""The OpenAPI document without a server, for `python -m router print-schema`."""

from typing import Any

from prometheus_client import CollectorRegistry

from router.http.app import Services, routing
from router.http.operations.server_info import ServerInfo
from router.request.validation import Limits, Validation
from router.telemetry.metrics import Metrics
from router.text.chat_template import ChatTemplate


def openapi_document(version: str) -> dict[str, Any]:
    """What /api-doc/openapi.json would answer."""
    # The routes are told of, and none is called: they need no model behind them.
    nothing: Any = None
    limits = Limits(max_input_len=1, max_total_len=2, vocab_size=1)
    info = ServerInfo(
        model_id="",
        model_names=("",),
        limits=limits,
        version=version,
        created_s=0,
        max_concurrent_requests=1,
        validation_workers=1,
        compute_type="",
    )
    services = Services(
        infer=nothing,
        validation=Validation(limits, nothing),
        tokenizer=nothing,
        chat_template=ChatTemplate({}, None, None),
        metrics=Metrics(CollectorRegistry(), max_input_len=1, max_total_len=2),
        info=info,
    )
    return routing(services, max_body_len=1).openapi()
