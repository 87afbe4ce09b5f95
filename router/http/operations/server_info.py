"""What the HTTP routes say about the server that they belong to; fixed once it is ready."""

from dataclasses import dataclass

from router.request.validation import Limits


@dataclass(frozen=True, slots=True)
class ServerInfo:
    """The served model and the limits, as `__main__` found them.

    `model_names` are the names that clients may ask for, the first one is told back.
    `created_s` is in Unix time. Lengths in tokens.
    """

    model_id: str
    model_names: tuple[str, ...]
    limits: Limits
    version: str
    created_s: int
    max_concurrent_requests: int
    validation_workers: int
    compute_type: str
    model_sha: str | None = None
    model_pipeline_tag: str | None = None
    sha: str | None = None
    docker_label: str | None = None
    model_dtype: str | None = None
    model_device_type: str | None = None
    attention: str | None = None
    num_shards: int = 1
    block_size: int | None = None
    num_blocks: int | None = None
    max_batch_prefill_tokens: int | None = None
    max_batch_size: int | None = None

    @property
    def system_fingerprint(self) -> str:
        """Changes whenever the same seed may bring another answer."""
        return f"{self.version}-{self.docker_label or 'native'}"
