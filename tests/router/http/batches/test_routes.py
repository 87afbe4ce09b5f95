"""Files and batches over HTTP: what is taken, what is refused, and whose is whose."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from router.http.server.auth import KeyRing, plain_keys
from tests.fakes import FakeShard
from tests.router.http.batches.harness import (
    COMPLETIONS,
    batching,
    begin,
    content,
    ended,
    lines,
    request_line,
    store_in,
    upload,
)
from tests.router.http.harness import housing

ONE = lines([request_line(0)])


def fault(answer: httpx.Response) -> tuple[int, str | None, str]:
    error = answer.json()["error"]
    return answer.status_code, error["param"], error["message"]


@pytest.mark.parametrize(
    ("method", "path"),
    [
        ("GET", "/v1/files"),
        ("POST", "/v1/files"),
        ("GET", "/v1/files/file-1/content"),
        ("POST", "/v1/batches"),
        ("GET", "/v1/batches/batch_1"),
        ("POST", "/v1/batches/batch_1/cancel"),
    ],
)
async def test_without_a_file_for_them_each_route_names_the_flag(method: str, path: str) -> None:
    async with housing(FakeShard()) as house, house.client as client:
        status, _, message = fault(await client.request(method, path))
    assert status == 403
    assert "--batch-file" in message


async def test_a_file_of_several_mib_comes_back_as_it_was(tmp_path: Path) -> None:
    sent = bytes(range(256)) * 13_000
    async with batching(store_in(tmp_path), max_body_len=1000) as client:
        file = await upload(client, sent)
        assert (file["bytes"], file["filename"], file["purpose"]) == (
            len(sent),
            "in.jsonl",
            "batch",
        )
        assert file["expires_at"] - file["created_at"] in (86_400, 86_401)
        answer = await client.get(f"/v1/files/{file['id']}/content")
        assert answer.content == sent
        assert (await client.get(f"/v1/files/{file['id']}")).json() == file
        deleted = await client.delete(f"/v1/files/{file['id']}")
        assert deleted.json() == {"id": file["id"], "object": "file", "deleted": True}
        assert (await client.get(f"/v1/files/{file['id']}")).status_code == 404


@pytest.mark.parametrize(
    ("form", "status", "said"),
    [
        ({"data": {"purpose": "fine-tune"}, "files": {"file": b"x"}}, 400, "`purpose` be batch"),
        ({"files": {"file": b"x"}}, 400, "`purpose` be batch"),
        ({"data": {"purpose": "batch"}, "files": {"other": b"x"}}, 400, "`file` must be there"),
        ({"json": {"purpose": "batch"}}, 415, "multipart/form-data"),
        (
            {"data": {f"x{n}": "" for n in range(17)}, "files": {"file": b"x"}},
            400,
            "at most 16 fields",
        ),
    ],
    ids=["purpose", "no purpose", "no file", "json", "fields"],
)
async def test_an_upload_that_is_refused_leaves_nothing(
    form: dict[str, Any], status: int, said: str, tmp_path: Path
) -> None:
    store = store_in(tmp_path)
    async with batching(store) as client:
        answer = await client.post("/v1/files", **form)
        assert fault(answer)[0] == status
        assert said in fault(answer)[2]
    assert store._db.execute("SELECT count(*) FROM objects").fetchone() == (0,)


async def test_an_upload_that_is_too_large_too_slow_or_cut_is_told_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def pieces(num: int, pause_s: float) -> AsyncIterator[bytes]:
        yield b'--b0\r\nContent-Disposition: form-data; name="file"; filename="x"\r\n\r\n'
        for _ in range(num):
            await asyncio.sleep(pause_s)
            yield b"x" * 1000

    monkeypatch.setattr("router.http.batches.routes.MAX_FILE_LEN", 5000)
    headers = {"content-type": "multipart/form-data; boundary=b0"}
    store = store_in(tmp_path)
    async with batching(store, body_timeout_s=0.1) as client:
        for num, pause_s, status in ((80, 0.0, 413), (5, 1.0, 408), (5, 0.0, 400)):
            sent = pieces(num, pause_s)
            answer = await client.post("/v1/files", content=sent, headers=headers)
            assert answer.status_code == status, answer.text
    assert store._db.execute("SELECT count(*) FROM objects").fetchone() == (0,)


async def test_an_upload_beyond_the_key_s_room_is_a_413_and_leaves_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path, max_bytes=1500)
    async with batching(store) as client:
        await upload(client, b"x" * 1000)
        answer = await client.post(
            "/v1/files", files={"file": b"x" * 1000}, data={"purpose": "batch"}
        )
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "quota_exceeded"
        (kept,) = (await client.get("/v1/files")).json()["data"]
        assert kept["bytes"] == 1000


@pytest.mark.parametrize(
    ("change", "status", "param"),
    [
        ({"endpoint": "/v1/embeddings"}, 400, "endpoint"),
        ({"completion_window": "1d"}, 400, "completion_window"),
        ({"completion_window": "0h"}, 400, "completion_window"),
        ({"metadata": {"a": 1}}, 400, "metadata.a"),
        ({"input_file_id": "file-none"}, 404, "input_file_id"),
        ({"input_file_id": None}, 400, "input_file_id"),
    ],
)
async def test_a_batch_that_breaks_a_rule_is_refused_by_the_field(
    change: dict[str, Any], status: int, param: str, tmp_path: Path
) -> None:
    async with batching(store_in(tmp_path)) as client:
        file = await upload(client, ONE)
        body = {"input_file_id": file["id"], "endpoint": COMPLETIONS, "completion_window": "24h"}
        answer = await client.post("/v1/batches", json={**body, **change})
        assert fault(answer)[:2] == (status, param)


async def test_pages_go_from_the_latest_to_the_first(tmp_path: Path) -> None:
    async with batching(store_in(tmp_path)) as client:
        made = [(await upload(client, b"x"))["id"] for _ in range(5)][::-1]
        page = (await client.get("/v1/files", params={"limit": 2})).json()
        assert [each["id"] for each in page["data"]] == made[:2]
        assert (page["first_id"], page["last_id"], page["has_more"]) == (made[0], made[1], True)
        rest = await client.get("/v1/files", params={"limit": 3, "after": page["last_id"]})
        assert [each["id"] for each in rest.json()["data"]] == made[2:]
        assert rest.json()["has_more"] is False
        assert fault(await client.get("/v1/batches", params={"limit": 0}))[:2] == (400, "limit")
        assert (await client.get("/v1/files", params={"after": "file-none"})).status_code == 404
        assert (await client.get("/v1/batches")).json()["data"] == []


async def test_a_key_sees_its_own_alone(tmp_path: Path) -> None:
    keys = KeyRing(plain_keys(["one", "two"]))
    one = {"authorization": "Bearer one"}
    two = {"authorization": "Bearer two"}
    async with batching(store_in(tmp_path), keys=keys) as client:
        batch_id = await begin(client, ONE, **one)
        batch = await ended(client, batch_id, **one)
        assert batch["status"] == "completed"
        paths = [
            f"/v1/batches/{batch_id}",
            f"/v1/files/{batch['input_file_id']}",
            f"/v1/files/{batch['output_file_id']}/content",
        ]
        for path in paths:
            assert (await client.get(path, headers=one)).status_code == 200
            assert (await client.get(path, headers=two)).status_code == 404
            assert (await client.get(path)).status_code == 401
        assert (await client.post(f"{paths[0]}/cancel", headers=two)).status_code == 404
        assert (await client.delete(paths[1], headers=two)).status_code == 404
        for kind in ("files", "batches"):
            assert (await client.get(f"/v1/{kind}", headers=two)).json()["data"] == []
        body = {"input_file_id": batch["input_file_id"], "endpoint": COMPLETIONS}
        body["completion_window"] = "24h"
        answer = await client.post("/v1/batches", json=body, headers=two)
        assert fault(answer)[:2] == (404, "input_file_id")


async def test_a_batch_that_has_ended_is_not_cancelled_any_more(tmp_path: Path) -> None:
    async with batching(store_in(tmp_path)) as client:
        batch = await ended(client, await begin(client, ONE))
        answer = await client.post(f"/v1/batches/{batch['id']}/cancel")
        assert answer.json() == batch
        assert len(await content(client, batch["output_file_id"])) == 1


async def test_unknown_fields_of_both_bodies_are_named(tmp_path: Path) -> None:
    async with batching(store_in(tmp_path)) as client:
        form = {"purpose": "batch", "expires_after[anchor]": "created_at"}
        file = await client.post("/v1/files", files={"file": ONE}, data=form)
        assert file.headers["x-ignored-fields"] == "expires_after[anchor]"
        body = {"input_file_id": file.json()["id"], "endpoint": COMPLETIONS}
        body |= {"completion_window": "1h", "output_expires_after": "x"}
        batch = await client.post("/v1/batches", json=body)
        assert batch.headers["x-ignored-fields"] == "output_expires_after"
        assert batch.json()["completion_window"] == "1h"
        assert batch.json()["expires_at"] - batch.json()["created_at"] == 3600
