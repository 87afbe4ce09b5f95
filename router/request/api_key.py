"""An API key as the router knows it: its name, its digest, and what who has it may do."""

from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True)
class ApiKey:
    """`digest` is SHA-256 of the key. `weight` is its share of a busy server beside others'.

    Limits are of all its requests together; None: there is none.
    """

    name: str
    digest: bytes = field(default=b"", repr=False)
    weight: float = 1.0
    max_concurrent_requests: int | None = None
    requests_per_minute: int | None = None
    tokens_per_minute: int | None = None
    constraint_seconds_per_minute: int | None = None


# Of every request where no key is needed.
NO_KEY = ApiKey("")
