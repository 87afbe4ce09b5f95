"""The hub and its cache here: what of it is there, and downloads.

Token, cache and whether to be offline are those of huggingface_hub (HF_TOKEN, HF_HOME,
HF_HUB_CACHE, HF_HUB_OFFLINE), which shows its own progress bars.
"""

import errno
import json
import logging
import re
import sys
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import TypeVar

from huggingface_hub import get_token, snapshot_download, try_to_load_from_cache
from huggingface_hub.constants import ENDPOINT, HF_HUB_CACHE, HF_HUB_OFFLINE
from huggingface_hub.errors import (
    GatedRepoError,
    HfHubHTTPError,
    HFValidationError,
    LocalEntryNotFoundError,
    OfflineModeIsEnabled,
    RepositoryNotFoundError,
    RevisionNotFoundError,
)
from huggingface_hub.utils.tqdm import disable_progress_bars, tqdm

from processes.model_folders import DownloadStalled, HubError, NotOnHub

# By then the hub's own time limits and retries are over. Progress bars and files grow by 10 MB at a
# time, eight files at once: a line that carries 140 kB a second is not given up.
_STALL_S = 600.0
_NUM_POLLS = 20
# What the hub allows: [OWNER/]NAME.
_HUB_ID = re.compile(r"[A-Za-z0-9][\w.-]{0,95}(/[A-Za-z0-9][\w.-]{0,95})?", re.ASCII)
_CONFIG = "config.json"
_WEIGHTS = "model.safetensors"

T = TypeVar("T")
_logger = logging.getLogger(__name__)


def fetched(name: str, revision: str | None, patterns: Sequence[str], noun: str) -> Path:
    """The snapshot of a hub's model. Raises HubError."""
    try:
        return download(name, revision, patterns)
    except HFValidationError as error:
        raise NotOnHub(
            f"the {noun} {name!r} is neither an existing folder nor a hub id (NAME or OWNER/NAME)"
        ) from error
    except (RepositoryNotFoundError, RevisionNotFoundError) as error:
        raise NotOnHub(f"the {noun} {name!r}: {_refusal(error, name, revision)}") from error
    except (HfHubHTTPError, LocalEntryNotFoundError, OfflineModeIsEnabled, OSError) as error:
        kind = NotOnHub if HF_HUB_OFFLINE else HubError
        raise kind(
            f"the {noun} {name!r} is no local folder and could not be fetched from the hub: "
            f"{_accident(error)}"
        ) from error


def _refusal(
    error: RepositoryNotFoundError | RevisionNotFoundError, name: str, revision: str | None
) -> str:
    """Why the hub does not give a model, and what to do."""
    has_token = get_token() is not None
    if isinstance(error, GatedRepoError):
        then = "with the account of HF_TOKEN" if has_token else "and set HF_TOKEN to your token"
        return f"it is gated; ask for access at {ENDPOINT}/{name}, {then}"
    if isinstance(error, RevisionNotFoundError):
        return f"on the hub it has no revision {(revision or 'main')!r}"
    private = "that HF_TOKEN may not read" if has_token else "for which HF_TOKEN must be set"
    return f"neither a local folder nor the hub has this name, or it is a private one {private}"


def _accident(error: Exception) -> str:
    """Why the hub was not reached, or did not answer, and what to do."""
    instead = "or name a folder or a GGUF file of this machine"
    if HF_HUB_OFFLINE:
        return f"HF_HUB_OFFLINE is set, and the cache {HF_HUB_CACHE} lacks it; unset it, {instead}"
    cause = error.__cause__ if isinstance(error, LocalEntryNotFoundError) else error
    if isinstance(cause, HfHubHTTPError):
        status = cause.response.status_code
        if status in (401, 403) and get_token() is not None:
            return f"{ENDPOINT} refuses HF_TOKEN ({status}); set it to a valid one, or unset it"
        return f"{ENDPOINT} answered {status}; try again later, {instead}"
    if isinstance(error, LocalEntryNotFoundError):
        why = _first_line(cause or error)
        return f"{ENDPOINT} cannot be reached ({why}); look at network and proxy, {instead}"
    if getattr(error, "errno", None) == errno.ENOSPC:
        return f"no space is left for {HF_HUB_CACHE}; HF_HOME moves it"
    return _first_line(error)


def download(
    name: str, revision: str | None, patterns: Sequence[str], stall_timeout_s: float = _STALL_S
) -> Path:
    """The snapshot of a hub's model, given up when no more data comes.

    How long a download takes is unbounded: models have up to terabytes. It has stalled when neither
    the progress bars move nor the model's folder in the cache grows, which another process may be
    filling. Where stderr is no terminal, lines of the log stand for the bars. Raises
    huggingface_hub's errors, and DownloadStalled.
    """
    draws_bars = sys.stderr.isatty()
    if not draws_bars:
        disable_progress_bars()
    updates: list[None] = []

    class CountingBar(tqdm):
        """A progress bar of the hub's that counts its updates."""

        def update(self, n: float | None = 1) -> bool | None:
            updates.append(None)
            is_shown: bool | None = super().update(n)
            return is_shown

    work = partial(
        snapshot_download,
        name,
        revision=revision,
        allow_patterns=list(patterns),
        tqdm_class=CountingBar,
    )
    cached = Path(HF_HUB_CACHE) / f"models--{name.replace('/', '--')}"

    def progress() -> tuple[int, int]:
        num_bytes = _num_bytes(cached)
        if not draws_bars and updates:
            _logger.info("%.1f MB of %s are here", num_bytes / 1e6, name)
        return len(updates), num_bytes

    folder = result_unless_stalled(work, progress, stall_timeout_s)
    if folder is None:
        raise DownloadStalled(
            f"{name!r} could not be fetched from the hub: nothing came for {stall_timeout_s:g} s"
        )
    return Path(folder)


def result_unless_stalled(
    work: Callable[[], str], progress: Callable[[], tuple[int, int]], stall_timeout_s: float
) -> str | None:
    """What `work` returns or raises; None once `progress` has been the same for so long."""
    future = run_in_daemon_thread(work)
    last = progress()
    last_s = time.monotonic()
    while not future.done():
        wait([future], stall_timeout_s / _NUM_POLLS)
        if (now := progress()) != last:
            last = now
            last_s = time.monotonic()
        elif not future.done() and time.monotonic() - last_s > stall_timeout_s:
            return None
    return future.result()


def run_in_daemon_thread(work: Callable[[], T]) -> Future[T]:
    """The result of a blocking call in a thread that nothing joins.

    The threads of an event loop are joined when it ends, and the interpreter's when that does: one
    that waits for a network would delay both.
    """
    future: Future[T] = Future()
    future.set_running_or_notify_cancel()

    def run() -> None:
        try:
            future.set_result(work())
        except BaseException as error:  # noqa: BLE001 (raised where it is awaited)
            # A library's panic or exit ends its call, not the process.
            is_ordinary = isinstance(error, Exception)
            failure = error if is_ordinary else RuntimeError(f"{type(error).__name__}: {error}")
            future.set_exception(failure)

    threading.Thread(target=run, daemon=True).start()
    return future


class HuggingFaceHub:
    """Whether the hub, or its cache here, has a model; asked before a server is started for it."""

    def has_here(self, name: str) -> bool:
        """Whether the cache has the model's config; needs no network."""
        return _is_hub_id(name) and _cached_file(name, _CONFIG) is not None

    def require(self, name: str) -> None:
        """Check that the model can be downloaded. Takes seconds. Raises HubError."""
        if not _is_hub_id(name):
            raise NotOnHub("a model of the hub is NAME or OWNER/NAME")
        if not (fetched(name, None, [_CONFIG], "model") / _CONFIG).is_file():
            raise NotOnHub(f"on the hub it has no {_CONFIG}")


def has_weights_cached(name: str) -> bool:
    """Whether the cache has a model's config and all its weights."""
    if not _is_hub_id(name) or _cached_file(name, _CONFIG) is None:
        return False
    if _cached_file(name, _WEIGHTS) is not None:
        return True
    index = _cached_file(name, f"{_WEIGHTS}.index.json")
    if index is None:
        return False
    try:
        parts = set(json.loads(Path(index).read_text())["weight_map"].values())
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return False
    return bool(parts) and all(_cached_file(name, str(part)) is not None for part in parts)


def _is_hub_id(name: str) -> bool:
    return bool(_HUB_ID.fullmatch(name)) and ".." not in name and "--" not in name


def _cached_file(name: str, file: str) -> str | None:
    path = try_to_load_from_cache(name, file)
    return path if isinstance(path, str) else None


def _num_bytes(folder: Path) -> int:
    """The sizes of all files below; a file that disappears meanwhile counts nothing."""
    total = 0
    for path in folder.rglob("*"):
        with suppress(OSError):
            total += path.lstat().st_size
    return total


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]
