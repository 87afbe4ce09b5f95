"""The client's errors, without status codes. Those of queries are in `query/errors.py`."""

import copyreg
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any


def _frozen(mapping: dict[Any, Any]) -> MappingProxyType[Any, Any]:
    return MappingProxyType(mapping)


# Python pickles no mapping that is frozen; results and errors have them.
copyreg.pickle(MappingProxyType, lambda frozen: (_frozen, (dict(frozen),)))

_NOTHING: Mapping[str, object] = MappingProxyType({})


class TandemError(Exception):
    """The root. All of them can be sent to other processes."""

    def __reduce__(self) -> tuple[Any, ...]:
        # Python would make them of their messages alone.
        return _remade, (type(self), self.args, self.__dict__)


def _remade(kind: type[TandemError], args: tuple[Any, ...], state: Mapping[str, Any]) -> object:
    made = kind.__new__(kind, *args)
    made.__dict__.update(state)
    return made


class Unreachable(TandemError):
    """No server answers at the address."""


class ConnectionLost(TandemError):
    """The connection broke while a reply was due."""


class BadInput(TandemError):
    """Typed or piped input breaks a rule; the text names the key, its value and the rule."""


class Refused(TandemError):
    """The server refuses a request.

    `error_type` is the server's, `field` the wrong field, `details` are its numbers or the parts of
    a constraint.
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
    """A field breaks its rule; the text names the field, its value and the rule."""


class ConstraintRefused(Refused):
    """The constraint is malformed, contradicts itself, or does not fit into its tokens."""


class ModelNotFound(Refused):
    """No model of this name is served, or it cannot be loaded."""


class Unauthorized(Refused):
    """The key is missing or wrong."""


class Overloaded(Refused):
    """No room now. `retry_after_s`: when to retry, None if the server did not say."""

    def __init__(
        self, message: str, error_type: str = "overloaded", retry_after_s: float | None = None
    ) -> None:
        super().__init__(message, error_type)
        self.retry_after_s = retry_after_s


class ServerFailed(TandemError):
    """An accepted request failed. `is_retryable`: the same request may succeed."""

    def __init__(self, message: str, error_type: str, *, is_retryable: bool = False) -> None:
        super().__init__(message)
        self.error_type = error_type
        self.is_retryable = is_retryable
