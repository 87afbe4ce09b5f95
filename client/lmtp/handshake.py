"""How a connection begins: the WebSocket is opened, version 2 agreed upon. Why it does not begin.

The only file of the client that reads HTTP status codes.
"""

import asyncio
import json
import ssl
from http import HTTPStatus

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from client.errors import Overloaded, TandemError, Unauthorized, Unreachable
from client.lmtp.address import Address
from client.lmtp.frames import VERSION, BadFrame, Failed, Greeting, hello_frame, read_frame

# The number of the HELLO's stream; those of requests come behind it.
GREETING_ID = 1

# Room for the scores of a whole context, or many alternatives of a token.
_MAX_FRAME_LEN = 64 << 20
# A server that does not say goodbye is not waited for.
_CLOSE_TIMEOUT_S = 2.0


async def open_websocket(address: Address, timeout_s: float) -> tuple[ClientConnection, Greeting]:
    """A WebSocket to `address` and the server's greeting, both within `timeout_s`.

    Raises Unreachable, Unauthorized or Overloaded.
    """
    try:
        async with asyncio.timeout(timeout_s):
            websocket = await _connect(address)
            try:
                return websocket, await _greet(websocket)
            except BaseException:
                await websocket.close()
                raise
    except TimeoutError:
        raise Unreachable(f"{address.http} did not answer within {timeout_s:g} s") from None
    except InvalidStatus as error:
        raise _refusal(error, address) from None
    except (OSError, WebSocketException, BadFrame) as error:
        raise Unreachable(f"{address.http}: {_reason(error)}") from None


async def _connect(address: Address) -> ClientConnection:
    headers = {} if address.key is None else {"Authorization": f"Bearer {address.key}"}
    return await connect(
        address.websocket,
        additional_headers=headers,
        compression=None,
        max_size=_MAX_FRAME_LEN,
        open_timeout=None,
        close_timeout=_CLOSE_TIMEOUT_S,
        proxy=None if address.is_local else True,
    )


async def _greet(websocket: ClientConnection) -> Greeting:
    await websocket.send(hello_frame(GREETING_ID))
    while True:
        frame = await websocket.recv()
        for stream_id, part in read_frame(frame if isinstance(frame, str) else ""):
            if isinstance(part, Greeting):
                return part
            if isinstance(part, Failed) and stream_id in (GREETING_ID, None):
                raise BadFrame(f"it does not speak version {VERSION} of LMTP: {part.error}")


def _refusal(error: InvalidStatus, address: Address) -> TandemError:
    response = error.response
    said = _said(bytes(response.body or b""))
    status = response.status_code
    message = f"{address.http} answered {status}" + (f": {said}" if said else "")
    if status in (HTTPStatus.UNAUTHORIZED, HTTPStatus.FORBIDDEN):
        return Unauthorized(message, "unauthorized")
    if status in (HTTPStatus.TOO_MANY_REQUESTS, HTTPStatus.SERVICE_UNAVAILABLE):
        after = response.headers.get("retry-after", "")
        return Overloaded(message, "overloaded", float(after) if after.isdecimal() else None)
    return Unreachable(f"{message}, not a WebSocket: is this a Tandem server?")


def _said(body: bytes) -> str:
    """The sentence of an error's body, or its text as it is."""
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        return body.decode(errors="replace").strip()[:300]


def _reason(error: Exception) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "nobody listens there"
    if isinstance(error, ssl.SSLCertVerificationError):
        return f"TLS: {error.verify_message}"
    if isinstance(error, ssl.SSLError):
        return f"TLS: {error.reason or error}"
    return str(error) or type(error).__name__
