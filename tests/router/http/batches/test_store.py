"""What is committed, whoever is killed; room, retention, and one process that leads."""

import os
import sqlite3
import stat
import time
from itertools import count
from pathlib import Path

import pytest

from router.http.batches.lines import Line
from router.http.batches.store import OPEN, BatchStore, output_id
from router.http.errors import HttpError
from router.request.errors import StartupFailed
from tests.router.http.batches.harness import COMPLETIONS, store_in

OWNER = b"owner"
NUM_LINES = 4


def begun(store: BatchStore) -> str:
    """A batch whose lines are there."""
    file_id = store.add_file(OWNER, "in.jsonl")
    store.append(OWNER, file_id, 0, b"lines")
    store.complete(file_id)
    batch = store.add_batch(OWNER, file_id, 3600, endpoint=COMPLETIONS, metadata=None)
    added = [Line(n, f"line-{n}", b"{}") for n in range(NUM_LINES)]
    store.add_lines(batch["id"], added)
    counts = {"total": NUM_LINES}
    store.change(batch["id"], "validating", status="in_progress", request_counts=counts)
    return str(batch["id"])


def compute(store: BatchStore, batch_id: str) -> None:
    for line in store.open_lines(OWNER, batch_id, -1):
        is_good = line.number % 2 == 0
        store.answer(batch_id, {line.number: b"%d\n" % line.number}, is_good=is_good)
    store.finish(batch_id, "completed")


def text(store: BatchStore, file_id: str) -> bytes:
    return b"".join(content for _, content in store.pieces(file_id, -1))


def killed_at(folder: Path, batch_id: str, num_commits: int) -> bool:
    """Whether a process that computes the batch was killed before that commit."""
    child = os.fork()
    if child == 0:
        store = store_in(folder)
        commits = count()
        store._db.set_trace_callback(
            lambda sql: os._exit(7) if sql == "COMMIT" and next(commits) == num_commits else None
        )
        compute(store, batch_id)
        os._exit(0)
    return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7


@pytest.mark.parametrize("num_commits", range(NUM_LINES + 1))
def test_a_kill_between_any_two_commits_leaves_each_line_open_or_answered(
    num_commits: int, tmp_path: Path
) -> None:
    batch_id = begun(store_in(tmp_path))
    assert killed_at(tmp_path, batch_id, num_commits)

    store = store_in(tmp_path)
    ((owner, batch),) = store.lead()
    counts = batch["request_counts"]
    num_open = len(store.open_lines(owner, batch_id, -1))
    assert (counts["completed"] + counts["failed"], num_open) == (
        num_commits,
        NUM_LINES - num_commits,
    )
    compute(store, batch_id)
    batch = store.find(OWNER, batch_id) or {}
    assert batch["request_counts"] == {"total": 4, "completed": 2, "failed": 2}
    assert text(store, batch["output_file_id"]) == b"0\n2\n"
    assert text(store, batch["error_file_id"]) == b"1\n3\n"
    assert store.lead() == []


def test_an_unkilled_one_would_have_ended(tmp_path: Path) -> None:
    batch_id = begun(store_in(tmp_path))
    assert not killed_at(tmp_path, batch_id, NUM_LINES + 1)
    assert store_in(tmp_path).lead() == []


def test_a_second_answer_changes_nothing(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    batch_id = begun(store)
    store.answer(batch_id, {0: b"first\n"}, is_good=True)
    store.answer(batch_id, {0: b"second\n"}, is_good=True)
    store.finish(batch_id, "completed")
    assert text(store, output_id(batch_id, is_good=True)) == b"first\n"


def test_answers_are_seen_when_the_batch_has_ended_and_no_empty_file_is(tmp_path: Path) -> None:
    store = store_in(tmp_path)
    batch_id = begun(store)
    output = output_id(batch_id, is_good=True)
    store.answer(batch_id, {0: b"first\n"}, is_good=True)
    assert store.find(OWNER, output) is None
    store.finish(batch_id, "cancelled")

    batch = store.find(OWNER, batch_id) or {}
    assert (batch["status"], batch["output_file_id"], batch["error_file_id"]) == (
        "cancelled",
        output,
        None,
    )
    file = store.find(OWNER, output) or {}
    assert (file["bytes"], file["purpose"]) == (6, "batch_output")
    assert [each["purpose"] for each in store.page(OWNER, "file", None, 9)] == [
        "batch_output",
        "batch",
    ]


STATES = [
    ("validating", "in_progress", True),
    ("in_progress", "cancelling", True),
    ("cancelling", "cancelled", True),
    ("in_progress", "expired", True),
    ("completed", "cancelling", False),
    ("cancelling", "in_progress", False),
]


@pytest.mark.parametrize(("before", "after", "may"), STATES)
def test_a_status_is_left_for_those_behind_it_alone(
    before: str, after: str, may: bool, tmp_path: Path
) -> None:
    store = store_in(tmp_path)
    batch_id = begun(store)
    store.change(batch_id, "in_progress", status=before)
    allowed = {"in_progress": "validating", "cancelling": "validating in_progress"}
    store.change(batch_id, allowed.get(after, OPEN), status=after)
    found = store.find(OWNER, batch_id) or {}
    assert found["status"] == (after if may else before)
    assert found.get(f"{after}_at") is not None or not may


def test_who_has_no_room_is_told_so_until_a_file_is_deleted(tmp_path: Path) -> None:
    store = store_in(tmp_path, max_bytes=10)
    file_id = store.add_file(OWNER, "a")
    store.append(OWNER, file_id, 0, b"x" * 6)
    with pytest.raises(HttpError, match="--max-batch-bytes"):
        store.append(OWNER, file_id, 1, b"x" * 5)
    store.append(b"other", store.add_file(b"other", "b"), 0, b"x" * 10)
    store.complete(file_id)
    with pytest.raises(HttpError) as refused:
        store.add_batch(OWNER, file_id, 3600)
    assert refused.value.error_type == "quota_exceeded"
    store.delete_file(OWNER, file_id)
    store.append(OWNER, store.add_file(OWNER, "c"), 0, b"x" * 10)


def test_answers_take_room_and_an_ended_batch_gives_its_input_s_back(tmp_path: Path) -> None:
    store = store_in(tmp_path, max_bytes=14)
    batch_id = begun(store)  # twice five bytes: its input, and what it works on
    store.answer(batch_id, {0: b"12345"}, is_good=True)
    assert store.open_lines(OWNER, batch_id, 0) == []
    store.give_up(batch_id, "quota_exceeded", "no room")
    store.finish(batch_id, "completed")
    batch = store.find(OWNER, batch_id) or {}
    assert batch["request_counts"] == {"total": 4, "completed": 1, "failed": 3}
    assert text(store, batch["error_file_id"]).count(b"quota_exceeded") == 3


def test_what_was_kept_for_long_enough_goes_but_nothing_that_is_open(tmp_path: Path) -> None:
    store = store_in(tmp_path, retention_s=0.0)
    store.add_file(OWNER, "under way")
    done_id = begun(store)
    compute(store, done_id)
    open_id = begun(store)
    time.sleep(0.01)
    store.forget_old()

    assert store.find(OWNER, done_id) is None
    assert store.page(OWNER, "file", None, 9) == []
    compute(store, open_id)
    assert text(store, output_id(open_id, is_good=True)) == b"0\n2\n"
    (num_pieces,) = store._db.execute("SELECT count(*) FROM pieces").fetchone()
    assert num_pieces == NUM_LINES


def test_of_two_with_one_file_one_leads_until_it_ends(tmp_path: Path) -> None:
    first = store_in(tmp_path)
    second = store_in(tmp_path)
    begun(second)
    assert len(first.lead()) == 1
    assert second.lead() == []
    first.follow()
    assert len(second.lead()) == 1


def test_the_file_is_for_its_user_alone(tmp_path: Path) -> None:
    begun(store_in(tmp_path))
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert modes == {0o600}


def test_what_is_no_database_is_refused_with_the_flag(tmp_path: Path) -> None:
    (tmp_path / "batches.db").write_text("something else, and long enough to be looked at" * 9)
    with pytest.raises(StartupFailed, match=r"--batch-file .*batches.db.*not a database"):
        store_in(tmp_path)
    with pytest.raises(StartupFailed, match="--batch-file"):
        store_in(tmp_path / "nowhere")
    assert issubclass(sqlite3.DatabaseError, sqlite3.Error)
