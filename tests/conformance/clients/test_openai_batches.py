"""openai's files and batches, from the upload to the answers: on a router over a fake shard, and
behind the front of two that have each its own."""

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import openai
import pytest
from openai.types import Batch

from tests.conformance.serving import Fake, Served, faked, free_port, fronted


@pytest.fixture(scope="module", params=["router", "front"])
def client(
    request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[openai.OpenAI]:
    folder = tmp_path_factory.mktemp("batches")
    with (
        faked("--batch-file", str(folder / "one.db")) as one,
        faked("--batch-file", str(folder / "other.db")) as other,
        fronted(one, other) as front,
    ):
        server: Served = one if request.param == "router" else front
        yield openai.OpenAI(base_url=server.openai_url, api_key="any", max_retries=0)


def request_line(number: int, **body: object) -> dict[str, object]:
    messages = [{"role": "user", "content": f"Hello {number}"}]
    body = {"messages": messages, "max_tokens": 5, **body}
    url = "/v1/chat/completions"
    return {"custom_id": f"line-{number}", "method": "POST", "url": url, "body": body}


def begun(client: openai.OpenAI, lines: list[dict[str, object]]) -> Batch:
    content = "\n".join(map(json.dumps, lines)).encode()
    file = client.files.create(file=("in.jsonl", content), purpose="batch")
    assert (file.bytes, file.filename, file.status) == (len(content), "in.jsonl", "processed")
    assert client.files.content(file.id).read() == content
    return client.batches.create(
        input_file_id=file.id,
        endpoint="/v1/chat/completions",
        completion_window="24h",
        metadata={"for": "a test"},
    )


def ended(client: openai.OpenAI, batch: Batch) -> Batch:
    give_up_s = time.monotonic() + 30
    while batch.status not in ("completed", "failed", "cancelled", "expired"):
        assert time.monotonic() < give_up_s, batch
        time.sleep(0.05)
        # While the replica that has it is away, that is a 503.
        with suppress(openai.InternalServerError):
            batch = client.batches.retrieve(batch.id)
    return batch


def test_a_batch_goes_from_its_file_to_its_answers(client: openai.OpenAI) -> None:
    lines = [request_line(n) for n in range(20)]
    batch = ended(client, begun(client, [*lines, request_line(20, max_tokens=-1)]))
    assert batch.status == "completed"
    assert batch.metadata == {"for": "a test"}
    assert batch.request_counts is not None
    counts = batch.request_counts
    assert (counts.total, counts.completed, counts.failed) == (21, 20, 1)
    assert batch.output_file_id is not None
    assert batch.error_file_id is not None
    answers = client.files.content(batch.output_file_id).text.splitlines()
    found = [json.loads(line) for line in answers]
    assert [each["custom_id"] for each in found] == [f"line-{n}" for n in range(20)]
    hello: Any = [{"role": "user", "content": "Hello 3"}]
    direct = client.chat.completions.create(model="", messages=hello, max_tokens=5)
    text = found[3]["response"]["body"]["choices"][0]["message"]["content"]
    assert text == direct.choices[0].message.content
    (error,) = client.files.content(batch.error_file_id).text.splitlines()
    assert json.loads(error)["response"]["status_code"] == 400


def test_a_file_with_wrong_lines_fails_with_their_numbers(client: openai.OpenAI) -> None:
    batch = ended(client, begun(client, [request_line(1), request_line(2, stream=True)]))
    assert batch.status == "failed"
    assert batch.errors is not None
    (error,) = batch.errors.data or []
    assert (error.code, error.line) == ("invalid_line", 2)


def test_a_batch_can_be_cancelled(client: openai.OpenAI) -> None:
    batch = begun(client, [request_line(n, max_tokens=2000) for n in range(200)])
    client.batches.cancel(batch.id)
    batch = ended(client, batch)
    assert batch.status == "cancelled"
    assert batch.cancelled_at is not None


def test_lists_are_paged_through_to_their_end(client: openai.OpenAI) -> None:
    files = [client.files.create(file=b"x", purpose="batch").id for _ in range(5)]
    listed = list(client.files.list(limit=2))
    ours = [file.id for file in listed if file.id in files]
    # Those of two replicas may stand in any order within a second; the ids name whose they are.
    for store in {each[: len("file-01234567")] for each in files}:
        assert [each for each in ours if each.startswith(store)] == [
            each for each in reversed(files) if each.startswith(store)
        ]
    assert len(ours) == len(files)
    times = [file.created_at for file in listed]
    assert times == sorted(times, reverse=True)
    ids = [batch.id for batch in client.batches.list(limit=1)]
    assert len(ids) == len({*ids}) >= 1
    assert client.files.delete(files[0]).deleted


def test_what_is_refused_comes_as_openai_s_exceptions(client: openai.OpenAI, fake: Fake) -> None:
    with pytest.raises(openai.NotFoundError):
        client.batches.retrieve("batch_none")
    with pytest.raises(openai.NotFoundError):
        client.files.content("file-none")
    with pytest.raises(openai.BadRequestError) as refused:
        client.files.create(file=b"x", purpose="assistants")
    assert refused.value.param == "purpose"
    off = openai.OpenAI(base_url=fake.openai_url, api_key="any", max_retries=0)
    with pytest.raises(openai.PermissionDeniedError, match="--batch-file"):
        off.batches.list()


def test_a_killed_replica_that_is_back_goes_on_with_its_batches(tmp_path: Path) -> None:
    own = ("--batch-file", str(tmp_path / "own.db"), "--port", str(free_port()))
    with faked("--batch-file", str(tmp_path / "other.db")) as other, faked(*own) as killed:
        direct = openai.OpenAI(base_url=killed.openai_url, api_key="any", max_retries=0)
        with fronted(other, killed) as front:
            client = openai.OpenAI(base_url=front.openai_url, api_key="any", max_retries=0)
            batch = begun(direct, [request_line(n, max_tokens=200) for n in range(100)])
            assert client.batches.retrieve(batch.id).id == batch.id
            killed.kill()
            with faked(*own):
                batch = ended(client, batch)
                assert batch.request_counts is not None
                assert batch.request_counts.completed == 100
                assert [each.id for each in client.batches.list()] == [batch.id]
