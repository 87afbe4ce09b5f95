"""`launcher batch`: the lines of a file computed as one of a server's batches, and their answers.

    in.jsonl -> POST /v1/files -> POST /v1/batches -> GET, until it has ended -> out.jsonl

The batch goes on without this command; with its id the command goes on with the batch. A server
that is away for less than a minute, as one that is started anew, is waited for.
"""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import httpx
from rich.console import Console
from rich.progress import Progress

from client.cli.terminal import ExitCode
from client.errors import BadInput, Refused, Unreachable
from client.lmtp.address import read_address

_ENDED = frozenset({"completed", "failed", "expired", "cancelled"})
_LOOK_EVERY_S = 0.5
_PATIENCE_S = 60.0
_TIMEOUT_S = 30.0


def run_batch(
    source: Path, target: Path, url: str, api_key: str | None, batch_id: str | None
) -> ExitCode:
    """The command; `batch_id` None: `source` is uploaded, and a new batch begins.

    Raises BadInput, Refused, Unreachable.
    """
    console = Console(stderr=True, highlight=False, soft_wrap=True)
    address = read_address(url, api_key)
    headers = {} if address.key is None else {"authorization": f"Bearer {address.key}"}
    with httpx.Client(
        base_url=address.http, headers=headers, timeout=_TIMEOUT_S, trust_env=not address.is_local
    ) as http:
        batch_id = batch_id or _begin(http, source)
        console.print(f"{batch_id} (go on with it: --id {batch_id})")
        try:
            batch = _until_ended(http, batch_id, console)
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        errors_path = target.with_suffix(".errors" + target.suffix)
        _download(http, batch["output_file_id"], target)
        _download(http, batch["error_file_id"], errors_path)
    for fault in (batch["errors"] or {"data": ()})["data"]:
        place = "" if fault["line"] is None else f"line {fault['line']}: "
        console.print(f"{place}{fault['message']}", markup=False)
    counts = batch["request_counts"]
    console.print(f"{batch['status']}: {counts['completed']} answers, {counts['failed']} errors")
    is_good = batch["status"] == "completed" and not counts["failed"]
    return ExitCode.OK if is_good else ExitCode.FAILED


def _begin(http: httpx.Client, source: Path) -> str:
    """The id of a new batch, for the endpoint that the first line names."""
    try:
        with source.open("rb") as lines:
            endpoint = json.loads(lines.readline())["url"]
            lines.seek(0)
            content = {"file": (source.name, lines)}
            purpose = {"purpose": "batch"}
            file = _answer(lambda: http.post("/v1/files", files=content, data=purpose)).json()
    except OSError as error:
        raise BadInput(f"{source}: {error.strerror}") from None
    except (ValueError, KeyError, TypeError):
        raise BadInput(f"{source}: the first line must be an object with `url`") from None
    body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"}
    return str(_answer(lambda: http.post("/v1/batches", json=body)).json()["id"])


def _until_ended(http: httpx.Client, batch_id: str, console: Console) -> Any:
    with Progress(console=console, disable=not console.is_terminal) as progress:
        shown = progress.add_task("waiting", total=None)
        while True:
            batch = _answer(lambda: http.get(f"/v1/batches/{batch_id}"), _PATIENCE_S).json()
            counts = batch["request_counts"]
            done = counts["completed"] + counts["failed"]
            total = counts["total"] or None
            progress.update(shown, description=batch["status"], total=total, completed=done)
            if batch["status"] in _ENDED:
                return batch
            time.sleep(_LOOK_EVERY_S)


def _download(http: httpx.Client, file_id: str | None, target: Path) -> None:
    """Writes the file, if there is one; the target is whole, or as it was."""
    part = target.with_name(f"{target.name}.part")

    def write() -> httpx.Response:
        with http.stream("GET", f"/v1/files/{file_id}/content") as answer, part.open("wb") as out:
            if answer.is_error:
                answer.read()
            for chunk in answer.iter_bytes():
                out.write(chunk)
        return answer

    if file_id is not None:
        _answer(write, _PATIENCE_S)
        part.replace(target)


def _answer(ask: Callable[[], httpx.Response], patience_s: float = 0.0) -> httpx.Response:
    """That of a later time, if need be. Raises Refused, Unreachable."""
    give_up_s = time.monotonic() + patience_s
    while True:
        try:
            answer = ask()
            if not answer.is_server_error:
                break
            problem = answer.text[:300]
        except httpx.TransportError as error:
            problem = str(error)
        if time.monotonic() >= give_up_s:
            raise Unreachable(f"the server does not answer: {problem}")
        time.sleep(_LOOK_EVERY_S)
    if answer.is_error:
        raise Refused(f"the server answered {answer.status_code}: {answer.text[:300]}")
    return answer
