"""What can go wrong between a program and a server, in words; no status codes.

TandemError
    Unreachable             nobody answers there
    ConnectionLost          the connection broke while something was expected of it
    Refused                 the server does not take the request, and says why
        InvalidRequest          a field, its value, the rule that it breaks
        ConstraintRefused       the constraint cannot be kept: malformed, contradictory, too long
        ModelNotFound           no such model, or it cannot be loaded
        Unauthorized            a key is needed
        Overloaded              later, perhaps: `retry_after_s`
    BadInput                a command line, a typed line or stdin breaks a rule of the commands
    ServerFailed            an accepted request that went wrong; `is_retryable` says if again
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

_NOTHING: Mapping[str, object] = MappingProxyType({})


class TandemError(Exception):
    """The root. All of them can be sent to other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would make them of their messages alone, and pickles no mapping that is frozen.
        state = {
            name: dict(value) if isinstance(value, MappingProxyType) else value
            for name, value in self.__dict__.items()
        }
        return _remade, (type(self), self.args, state)


def _remade(kind: type[TandemError], args: tuple[Any, ...], state: Mapping[str, Any]) -> object:
    made = kind.__new__(kind, *args)
    made.__dict__.update(state)
    return made


class Unreachable(TandemError):
    """Nobody answers at the address."""


class ConnectionLost(TandemError):
    """The connection broke while something was expected of it."""


class BadInput(TandemError):
    """What was typed or piped to a command breaks a rule; names the key, its value and the rule."""


class Refused(TandemError):
    """The server does not take a request.

    `error_type` is the server's word, `field` the field that is wrong, `details` what else it says
    (numbers, parts of a constraint).
    """

    def __init__(
        self,
        message: str,
        error_type: str = "refused",
        field: str | None = None,
        details: Mapping[str, object] = _NOTHING,
    ) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.field = field
        self.details = details


class InvalidRequest(Refused):
    """A field breaks its rule."""


class ConstraintRefused(Refused):
    """The constraint is malformed, contradicts itself, or does not fit into its tokens."""


class ModelNotFound(Refused):
    """No model of this name is served, or it cannot be loaded."""


class Unauthorized(Refused):
    """A key is needed, or another one."""


class Overloaded(Refused):
    """Not now. `retry_after_s`: when to come again, None if the server did not say."""

    def __init__(
        self, message: str, error_type: str = "overloaded", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, error_type)
        self.retry_after_s = retry_after_s


class ServerFailed(TandemError):
    """An accepted request went wrong. `is_retryable`: the same request may succeed."""

    def __init__(self, message: str, error_type: str, *, is_retryable: bool = False) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.is_retryable = is_retryable
