"""The secret that a router has to show to a shard which listens at a port."""

from hashlib import sha256
from hmac import compare_digest
from typing import Any

import grpc
import grpc.aio
from grpc_health.v1 import health

from model_server.service.service import Continuation, MethodHandler


class ShardToken(grpc.aio.ServerInterceptor):
    """Refuses every call without the token, but for the standard health service."""

    def __init__(self, token: str) -> None:
        self._digest = _digest(f"Bearer {token}")

    async def intercept_service(
        self, continuation: Continuation, handler_call_details: grpc.HandlerCallDetails
    ) -> MethodHandler:
        if handler_call_details.method.startswith(f"/{health.SERVICE_NAME}/"):
            return await continuation(handler_call_details)
        shown = dict(handler_call_details.invocation_metadata or ()).get("authorization", "")
        text = shown if isinstance(shown, str) else shown.decode(errors="replace")
        if compare_digest(_digest(text), self._digest):
            return await continuation(handler_call_details)
        return grpc.unary_unary_rpc_method_handler(_refuse)


async def _refuse(request: Any, context: grpc.aio.ServicerContext[Any, Any]) -> None:
    reason = "the router's SHARD_TOKEN is missing or not the shard's"
    await context.abort(grpc.StatusCode.UNAUTHENTICATED, reason)


def _digest(text: str) -> bytes:
    return sha256(text.encode("utf-8", "surrogateescape")).digest()
