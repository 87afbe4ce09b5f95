"""`launcher batch`: a file of requests in, a file of answers out."""

import asyncio
import json
from pathlib import Path
from subprocess import CompletedProcess

from router.http.batches.runner import BatchRunner
from router.http.bodies import end
from router.http.server.auth import NO_KEYS
from tests.command_line import run_launcher
from tests.fakes import FakeShard
from tests.router.http.batches.harness import lines, request_line, store_in
from tests.router.http.harness import housing, listening

PAGE = Path(__file__).parents[3] / "docs" / "batches.md"


async def runs(folder: Path, *commands: tuple[str, ...]) -> list[CompletedProcess[str]]:
    """What `launcher batch` says with each of these arguments, one after the other."""
    runner = BatchRunner(store_in(folder), NO_KEYS, 8)
    async with housing(FakeShard(), batches=runner) as house, listening(house.app) as port:
        running = asyncio.create_task(runner.run())
        url = ("--url", f"127.0.0.1:{port}")
        said = [await asyncio.to_thread(run_launcher, "batch", *args, *url) for args in commands]
        await end(running)
    return said


async def test_answers_and_errors_are_files_and_an_id_goes_on(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    again = tmp_path / "again.jsonl"
    wrong = request_line(9, max_tokens=-1)
    source.write_bytes(lines([*map(request_line, range(3)), wrong]))

    (said,) = await runs(tmp_path, (str(source), str(target)))
    assert (said.returncode, said.stdout) == (1, "")
    assert "completed: 3 answers, 1 errors" in said.stderr
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [each["custom_id"] for each in answers] == ["line-0", "line-1", "line-2"]
    (error,) = (tmp_path / "out.errors.jsonl").read_text().splitlines()
    assert json.loads(error)["response"]["status_code"] == 400

    batch_id = said.stderr.split()[0]
    (said,) = await runs(tmp_path, ("no-such-file", str(again), "--id", batch_id))
    assert said.returncode == 1
    assert again.read_bytes() == target.read_bytes()


async def test_the_page_s_example_is_answered(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    target = tmp_path / "out.jsonl"
    source.write_text(PAGE.read_text().split("```json\n")[1].split("```")[0])
    (said,) = await runs(tmp_path, (str(source), str(target)))
    assert said.returncode == 0, said.stderr
    answers = [json.loads(line) for line in target.read_text().splitlines()]
    assert [each["custom_id"] for each in answers] == ["a", "b"]


async def test_what_is_wrong_is_said_in_a_line(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.jsonl"
    twice = tmp_path / "twice.jsonl"
    target = tmp_path / "out.jsonl"
    wrong.write_text("{}\n")
    twice.write_bytes(lines([request_line(1), request_line(1)]))
    said = await runs(
        tmp_path,
        (str(tmp_path / "none.jsonl"), str(target)),
        (str(wrong), str(target)),
        (str(twice), str(target)),
        (str(twice), str(target), "--id", "batch_none"),
    )
    assert [each.returncode for each in said] == [1, 1, 1, 1]
    assert "No such file" in said[0].stderr
    assert "an object with `url`" in said[1].stderr
    assert "line 2: `custom_id` must be there once" in said[2].stderr
    assert "404" in said[3].stderr
    assert not target.exists()


def test_no_server_is_one_clear_line(tmp_path: Path) -> None:
    source = tmp_path / "in.jsonl"
    source.write_bytes(lines([request_line(0)]))
    said = run_launcher("batch", str(source), "out.jsonl", "--url", "http://127.0.0.1:1")
    assert said.returncode == 1
    assert said.stderr.startswith("error: the server does not answer")
