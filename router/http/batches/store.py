"""Files and batches in SQLite: what is committed survives every process, and a power cut.

    an upload -> pieces -> a file --its lines--> a batch: validating -> in_progress -> completed
                                                              |        |  cancelling -> cancelled
                                                              +-> failed    expired

A line waits in `lines` until its answer is a piece of the batch's output file, or of its error
file: one transaction, so that a line has one answer whoever is killed, and when. Both kinds of
objects are kept as the documents that clients get.
"""

import fcntl
import os
import sqlite3
import time
import uuid
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, ParamSpec, TypeVar

import orjson

from processes.worker_threads import WorkerThreads
from router.http.batches.lines import Line
from router.http.errors import HttpError
from router.request.errors import StartupFailed

PIECE_LEN = 1 << 20
OPEN = "validating in_progress cancelling"
_NUM_READ = 16
# An upload that takes longer has lost its client, or its server.
_UPLOAD_S = 3600
_SCHEMA = """
PRAGMA auto_vacuum = INCREMENTAL;
PRAGMA journal_mode = WAL;
PRAGMA synchronous = FULL;
PRAGMA foreign_keys = ON;
CREATE TABLE IF NOT EXISTS objects (
    number INTEGER PRIMARY KEY AUTOINCREMENT, id TEXT UNIQUE, owner BLOB, kind TEXT,
    document TEXT, bytes INTEGER, begun REAL, ended REAL);
CREATE TABLE IF NOT EXISTS pieces (
    file TEXT REFERENCES objects(id) ON DELETE CASCADE, number INTEGER, content BLOB,
    PRIMARY KEY (file, number));
CREATE TABLE IF NOT EXISTS lines (
    batch TEXT REFERENCES objects(id) ON DELETE CASCADE, number INTEGER, custom_id TEXT,
    body BLOB, PRIMARY KEY (batch, number));
CREATE TABLE IF NOT EXISTS names (name TEXT);
INSERT INTO names SELECT lower(hex(randomblob(4))) WHERE NOT EXISTS (SELECT * FROM names);
"""
# Files are seen once they are whole.
_SEEN = "FROM objects WHERE owner = ? AND (ended OR kind = 'batch')"

P = ParamSpec("P")
T = TypeVar("T")
Document = dict[str, Any]


def output_id(batch_id: str, *, is_good: bool) -> str:
    """The file of a batch's answers, or of its errors."""
    return batch_id.replace("batch_", "file-output-" if is_good else "file-error-")


def output_line(custom_id: str, response: object, error: object) -> bytes:
    """A line of such a file."""
    answer = {"id": f"batch_req_{uuid.uuid4().hex}", "custom_id": custom_id}
    return orjson.dumps({**answer, "response": response, "error": error}) + b"\n"


class BatchStore:
    """Owner of the database in one file. `ask` calls its methods, in the store's own thread.

    Files and open batches of an owner, the digest of its key, have `max_bytes` together; what has
    ended is kept for `retention_s`. Its ids begin with its `name`, so that a front of several knows
    whom to ask.
    """

    def __init__(self, path: Path, max_bytes: int, retention_s: float) -> None:
        """Raises StartupFailed for a path where no such file can be."""
        self._max_bytes = max_bytes
        self._retention_s = retention_s
        self._thread = WorkerThreads(1, "batches")
        try:
            # What clients send and are answered is for this user alone.
            os.close(os.open(path, os.O_CREAT | os.O_RDWR, 0o600))
            self._lock = os.open(f"{path}.lock", os.O_CREAT | os.O_RDWR, 0o600)
            self._db = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
            self._db.executescript(_SCHEMA)
            (self.name,) = self._db.execute("SELECT name FROM names").fetchone()
        except (OSError, sqlite3.Error) as error:
            raise StartupFailed(f"--batch-file {str(path)!r}: {error}") from error

    async def ask(self, work: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """What `work` returns, done in the store's thread."""
        return await self._thread.run(partial(work, *args, **kwargs))

    def find(self, owner: bytes, object_id: str) -> Document | None:
        query = f"SELECT document {_SEEN} AND id = ?"
        row = self._db.execute(query, (owner, object_id)).fetchone()
        return None if row is None else orjson.loads(row[0])

    def page(self, owner: bytes, kind: str, after: str | None, most: int) -> list[Document]:
        """The latest first, behind the one that is named."""
        query = (
            f"SELECT document {_SEEN} AND kind = ? AND number < coalesce("
            "(SELECT number FROM objects WHERE id = ?), 1 << 62) ORDER BY number DESC LIMIT ?"
        )
        rows = self._db.execute(query, (owner, kind, after, most))
        return [orjson.loads(document) for (document,) in rows]

    def add_file(self, owner: bytes, name: str) -> str:
        """A file that is to be written."""
        file_id = f"file-{self.name}-{uuid.uuid4().hex}"
        self._add(owner, file_id, "file", 0, filename=name, purpose="batch")
        return file_id

    def append(self, owner: bytes, file_id: str, number: int, content: bytes) -> None:
        """Raises HttpError where the owner's files have no room for it."""
        self._require_room(owner, len(content))
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._append(file_id, number, content)

    def complete(self, file_id: str) -> None:
        """From now on the file is seen."""
        now_s = time.time()
        fields = "'$.bytes', bytes, '$.status', 'processed', '$.expires_at', ?"
        query = (
            f"UPDATE objects SET ended = ?, document = json_set(document, {fields}) WHERE id = ?"
        )
        self._db.execute(query, (now_s, int(now_s + self._retention_s), file_id))

    def delete_file(self, owner: bytes, file_id: str) -> None:
        """A batch that has begun does not need it any more."""
        query = "DELETE FROM objects WHERE kind = 'file' AND owner = ? AND id = ?"
        self._db.execute(query, (owner, file_id))

    def pieces(self, file_id: str, after: int) -> list[tuple[int, bytes]]:
        """The next pieces behind that number, a MiB or a little more; none at the end."""
        query = "SELECT number, content FROM pieces WHERE file = ? AND number > ? ORDER BY number"
        found: list[tuple[int, bytes]] = []
        num_bytes = 0
        for number, content in self._db.execute(query, (file_id, after)):
            found.append((number, content))
            num_bytes += len(content)
            if num_bytes >= PIECE_LEN:
                break
        return found

    def add_batch(self, owner: bytes, file_id: str, window_s: int, **fields: object) -> Document:
        """Raises HttpError where there is no such file, or no room to work on it."""
        file = self.find(owner, file_id)
        if file is None or file["object"] != "file":
            message = f"there is no file `{file_id[:100]}`"
            raise HttpError(404, "not_found", message, field="input_file_id")
        self._require_room(owner, file["bytes"])
        fields |= dict.fromkeys(("errors", "output_file_id", "error_file_id"))
        fields |= {"input_file_id": file_id, "status": "validating"}
        fields |= {"request_counts": {"total": 0, "completed": 0, "failed": 0}}
        fields |= {"expires_at": int(time.time()) + window_s}
        batch_id = f"batch_{self.name}-{uuid.uuid4().hex}"
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for is_good in (True, False):
                name = f"{batch_id}_{'output' if is_good else 'error'}.jsonl"
                answers = output_id(batch_id, is_good=is_good)
                self._add(owner, answers, "file", 0, filename=name, purpose="batch_output")
            return self._add(owner, batch_id, "batch", file["bytes"], **fields)

    def lead(self) -> list[tuple[bytes, Document]]:
        """The open batches with their owners, the oldest first; none while another process leads.

        Of several with one file one computes, until it ends: the lock is the kernel's, so that the
        one that follows a killed router need not wait.
        """
        try:
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return []
        query = "SELECT owner, document FROM objects WHERE kind = 'batch' AND ended IS NULL"
        rows = self._db.execute(f"{query} ORDER BY number")
        return [(owner, orjson.loads(document)) for owner, document in rows]

    def follow(self) -> None:
        """Another process may lead; this one does so no more."""
        os.close(self._lock)

    def add_lines(self, batch_id: str, lines: Sequence[Line]) -> None:
        """Lines that are computed once all are there; one that is there already is replaced."""
        rows = ((batch_id, line.number, line.custom_id, line.body) for line in lines)
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.executemany("INSERT OR REPLACE INTO lines VALUES (?, ?, ?, ?)", rows)

    def open_lines(self, owner: bytes, batch_id: str, after: int) -> list[Line]:
        """The next ones behind that number; none where the owner has no room for answers."""
        if not self._has_room(owner, 0):
            return []
        query = "SELECT number, custom_id, body FROM lines WHERE batch = ? AND number > ?"
        rows = self._db.execute(f"{query} ORDER BY number LIMIT {_NUM_READ}", (batch_id, after))
        return [Line(*row) for row in rows]

    def change(self, batch_id: str, before: str, **fields: object) -> None:
        """Of a batch whose status is one of the words `before`."""
        stamp = {f"{fields['status']}_at": int(time.time())}
        query = (
            "UPDATE objects SET document = json_patch(document, ?) WHERE id = ?"
            " AND instr(?, json_extract(document, '$.status'))"
        )
        self._db.execute(query, (orjson.dumps(fields | stamp).decode(), batch_id, before))

    def answer(self, batch_id: str, answers: Mapping[int, bytes], *, is_good: bool) -> None:
        """Commits answers by the numbers of their lines; a line's second one changes nothing."""
        count = f"$.request_counts.{'completed' if is_good else 'failed'}"
        more = "json_set(document, ?1, json_extract(document, ?1) + 1)"
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            for number, content in answers.items():
                query = "DELETE FROM lines WHERE batch = ? AND number = ?"
                if self._db.execute(query, (batch_id, number)).rowcount:
                    self._append(output_id(batch_id, is_good=is_good), number, content)
                    query = f"UPDATE objects SET document = {more} WHERE id = ?2"
                    self._db.execute(query, (count, batch_id))

    def give_up(self, batch_id: str, code: str, message: str) -> None:
        """Every line that is open gets this error."""
        error = {"code": code, "message": message}
        rows = self._db.execute("SELECT number, custom_id FROM lines WHERE batch = ?", (batch_id,))
        answers = {number: output_line(custom_id, None, error) for number, custom_id in rows}
        self.answer(batch_id, answers, is_good=False)

    def finish(self, batch_id: str, status: str, errors: Sequence[Document] = ()) -> None:
        """The batch's last status; files of its answers are there, unless they would be empty."""
        fields: Document = {"errors": {"object": "list", "data": errors}} if errors else {}
        with self._db:
            self._db.execute("BEGIN IMMEDIATE")
            self._db.execute("DELETE FROM lines WHERE batch = ?", (batch_id,))
            for is_good, name in ((True, "output_file_id"), (False, "error_file_id")):
                file_id = output_id(batch_id, is_good=is_good)
                query = "DELETE FROM objects WHERE id = ? AND bytes = 0"
                if not self._db.execute(query, (file_id,)).rowcount:
                    self.complete(file_id)
                    fields[name] = file_id
            query = "UPDATE objects SET bytes = 0, ended = ? WHERE id = ?"
            self._db.execute(query, (time.time(), batch_id))
            self.change(batch_id, OPEN, status=status, **fields)

    def forget_old(self) -> None:
        """What has been kept for long enough goes, with what broken uploads have left."""
        query = (
            "DELETE FROM objects WHERE ended < ? OR (ended IS NULL AND begun < ?"
            " AND kind = 'file' AND document NOT LIKE '%batch_output%')"
        )
        now_s = time.time()
        self._db.execute(query, (now_s - self._retention_s, now_s - _UPLOAD_S))
        self._db.execute("PRAGMA incremental_vacuum").fetchall()

    def _add(
        self, owner: bytes, object_id: str, kind: str, num_bytes: int, **fields: object
    ) -> Document:
        now_s = int(time.time())
        document = {"id": object_id, "object": kind, "created_at": now_s, **fields}
        query = "INSERT INTO objects VALUES (NULL, ?, ?, ?, ?, ?, ?, NULL)"
        row = (object_id, owner, kind, orjson.dumps(document).decode(), num_bytes, now_s)
        self._db.execute(query, row)
        return document

    def _append(self, file_id: str, number: int, content: bytes) -> None:
        self._db.execute("INSERT INTO pieces VALUES (?, ?, ?)", (file_id, number, content))
        query = "UPDATE objects SET bytes = bytes + ? WHERE id = ?"
        self._db.execute(query, (len(content), file_id))

    def _has_room(self, owner: bytes, num_bytes: int) -> bool:
        query = "SELECT coalesce(sum(bytes), 0) + ? <= ? FROM objects WHERE owner = ?"
        row = self._db.execute(query, (num_bytes, self._max_bytes, owner)).fetchone()
        return bool(row[0])

    def _require_room(self, owner: bytes, num_bytes: int) -> None:
        if not self._has_room(owner, num_bytes):
            message = (
                f"files and open batches of a key have {self._max_bytes} bytes here "
                "(--max-batch-bytes); delete files that are no longer needed"
            )
            raise HttpError(413, "quota_exceeded", message)
