"""A router with batches over a fake shard, and what their tests ask of it."""

import asyncio
import json
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import httpx

from router.http.batches.runner import BatchRunner
from router.http.batches.store import BatchStore
from router.http.bodies import end
from router.http.server.auth import NO_KEYS, KeyRing
from tests.fakes import FakeShard
from tests.router.http.harness import housing

COMPLETIONS = "/v1/completions"
DAY_S = 86_400.0


def store_in(folder: Path, max_bytes: int = 1 << 30, retention_s: float = DAY_S) -> BatchStore:
    return BatchStore(folder / "batches.db", max_bytes, retention_s)


@asynccontextmanager
async def batching(
    store: BatchStore,
    shard: FakeShard | None = None,
    keys: KeyRing = NO_KEYS,
    num_slots: int = 8,
    **edge: Any,
) -> AsyncIterator[httpx.AsyncClient]:
    """A client of a router that computes the store's batches for the time of the block."""
    runner = BatchRunner(store, keys, num_slots)
    if keys:
        edge["api_keys"] = keys
    async with housing(shard or FakeShard(), batches=runner, **edge) as house:
        running = asyncio.create_task(runner.run())
        try:
            async with house.client as client:
                yield client
        finally:
            await end(running)


def request_line(number: int, url: str = COMPLETIONS, **body: Any) -> dict[str, Any]:
    body = {"prompt": f"Once {number}", "max_tokens": 5, **body}
    return {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": body}


def lines(objects: Sequence[object]) -> bytes:
    return b"".join(json.dumps(each).encode() + b"\n" for each in objects)


async def upload(client: httpx.AsyncClient, content: bytes, **headers: str) -> dict[str, Any]:
    form = {"file": ("in.jsonl", content)}
    answer = await client.post("/v1/files", files=form, data={"purpose": "batch"}, headers=headers)
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


async def begin(
    client: httpx.AsyncClient, content: bytes, endpoint: str = COMPLETIONS, **headers: str
) -> str:
    """The id of a new batch over these lines."""
    file = await upload(client, content, **headers)
    body = {"input_file_id": file["id"], "endpoint": endpoint, "completion_window": "24h"}
    answer = await client.post("/v1/batches", json=body, headers=headers)
    assert answer.status_code == 200, answer.text
    assert answer.json()["status"] == "validating"
    return str(answer.json()["id"])


async def ended(client: httpx.AsyncClient, batch_id: str, **headers: str) -> dict[str, Any]:
    """The batch, once it has ended."""
    async with asyncio.timeout(20):
        while True:
            answer = await client.get(f"/v1/batches/{batch_id}", headers=headers)
            batch = dict(answer.json())
            if batch["status"] not in ("validating", "in_progress", "cancelling"):
                return batch
            await asyncio.sleep(0.02)


async def content(client: httpx.AsyncClient, file_id: str | None) -> list[dict[str, Any]]:
    """The lines of a file; none: there is no file."""
    if file_id is None:
        return []
    answer = await client.get(f"/v1/files/{file_id}/content")
    assert answer.status_code == 200
    return [json.loads(line) for line in answer.content.splitlines()]
