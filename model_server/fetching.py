"""A snapshot of a model from the hub, given up where nothing comes any more.

How long a fetch takes is open: models have up to terabytes. What is bounded is silence: neither the
progress bars move nor the model's folder in the cache, which another process may be filling.
"""

import threading
import time
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path

from huggingface_hub import snapshot_download
from huggingface_hub.constants import HF_HUB_CACHE
from huggingface_hub.utils.tqdm import tqdm

from model_server.errors import FetchStalled

# The hub's own time limits and retries are over by then. Bars and files move by 10 MB at a time, of
# eight files at once: lines that bring 140 kB a second are not given up.
SILENCE_S = 600.0
_POLLS = 20


def fetch(
    model_id: str, revision: str | None, patterns: Sequence[str], silence_s: float = SILENCE_S
) -> Path:
    """The folder of a model whose files of these patterns are there.

    Raises huggingface_hub's errors, and FetchStalled; then a thread goes on waiting.
    """
    moves: list[None] = []

    class Bar(tqdm):
        """A progress bar of the hub's that tells of its moves."""

        def update(self, n: float | None = 1) -> bool | None:
            moves.append(None)
            return super().update(n)

    work = partial(
        snapshot_download,
        model_id,
        revision=revision,
        allow_patterns=list(patterns),
        tqdm_class=Bar,
    )
    cached = Path(HF_HUB_CACHE) / f"models--{model_id.replace('/', '--')}"

    def come() -> tuple[int, int]:
        return len(moves), _num_bytes(cached)

    fetched = unless_still(work, come, silence_s)
    if fetched is None:
        raise FetchStalled(
            f"{model_id!r} could not be fetched from the hub: nothing came for {silence_s:g} s"
        )
    return Path(fetched)


def unless_still(
    work: Callable[[], str], come: Callable[[], tuple[int, int]], silence_s: float
) -> str | None:
    """What `work` returns or raises; None once what has `come` was the same for so long."""
    found: list[str] = []
    errors: list[BaseException] = []

    def run() -> None:
        try:
            found.append(work())
        except BaseException as error:  # noqa: BLE001 - it is raised again below
            errors.append(error)

    thread = threading.Thread(target=run, daemon=True)
    thread.start()
    last, last_s = come(), time.monotonic()
    while thread.is_alive():
        thread.join(silence_s / _POLLS)
        if (now := come()) != last:
            last, last_s = now, time.monotonic()
        elif thread.is_alive() and time.monotonic() - last_s > silence_s:
            return None
    if errors:
        raise errors[0]
    return found[0]


def _num_bytes(folder: Path) -> int:
    """Of all files below; what goes while it is looked at counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        try:
            total += path.lstat().st_size
        except OSError:
            continue
    return total
