"""The server's error objects, as the client's errors."""

from collections.abc import Mapping
from types import MappingProxyType

from client.errors import (
    ConstraintRefused,
    InvalidRequest,
    ModelNotFound,
    Overloaded,
    ServerFailed,
    TandemError,
    Unauthorized,
)

# The server's words for what it did not begin, and for requests that were wrong. A model that could
# not be loaded may load when it is tried again; until somebody has seen to it that is unlikely.
_BUSY = frozenset({"overloaded", "unhealthy", "draining", "too_many_streams", "model_loading"})
_REFUSALS: Mapping[str, type[InvalidRequest | ConstraintRefused | ModelNotFound | Unauthorized]] = {
    "constraint_error": ConstraintRefused,
    "model_not_found": ModelNotFound,
    "model_load_failed": ModelNotFound,
    "unauthorized": Unauthorized,
}
# What went wrong with requests that the server had taken.
_FAILURES = frozenset({"generation", "incomplete_generation", "internal_error", "cancelled"})


def read_fault(fields: Mapping[str, object]) -> TandemError:
    """An error object (`error`, `error_type`, `field` ...) as an exception, not yet raised."""
    message = str(fields["error"])
    error_type = str(fields.get("error_type") or "")
    retry_after_s = fields.get("retry_after_s")
    is_retryable = bool(fields.get("retryable", False))
    if error_type in _BUSY:
        after_s = float(retry_after_s) if isinstance(retry_after_s, int | float) else None
        return Overloaded(message, error_type, after_s)
    kind = _REFUSALS.get(error_type)
    if kind is None and (is_retryable or error_type in _FAILURES or not error_type):
        return ServerFailed(message, error_type or "unknown", is_retryable=is_retryable)
    details = fields.get("details")
    field = fields.get("field")
    if isinstance(details, dict) and "reason" in details:
        # A malformed constraint is a field that breaks its rule, in the server's words.
        kind = ConstraintRefused
    return (kind or InvalidRequest)(
        message,
        error_type,
        None if field is None else str(field),
        MappingProxyType(details if isinstance(details, dict) else {}),
    )
