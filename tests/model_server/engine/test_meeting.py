"""Ranks find one another in a new store alone, and notice that one is gone."""

import json
import queue
import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import timedelta

import pytest
from torch._C._distributed_c10d import TCPStore

from model_server.engine import meeting
from model_server.engine.meeting import Meeting
from model_server.errors import RanksDiverged, RanksLost
from processes.addresses import free_port

SOON = timedelta(seconds=20)
SETUP = {"the version of tandem": "1", "--dtype": "auto"}


@pytest.fixture
def first() -> Meeting:
    """Rank 0's, of three."""
    return Meeting(0, 3, "127.0.0.1", free_port(), SETUP)


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(meeting, "_BEAT_S", 0.05)
    monkeypatch.setattr(meeting, "_SILENCE_S", 1.0)


@contextmanager
def beating(store: TCPStore, rank: int) -> Iterator[None]:
    is_over = threading.Event()

    def beat() -> None:
        while not is_over.wait(0.05):
            store.set(f"beat/{rank}", str(time.monotonic_ns()))

    thread = threading.Thread(target=beat)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


class Cable:
    """A port that leads to another, until it is pulled: then nothing comes, and nothing closes."""

    def __init__(self, port: int) -> None:
        self._target = port
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port: int = self._listener.getsockname()[1]
        self._sockets = [self._listener]
        self._is_pulled = False

    def __enter__(self) -> "Cable":
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        for each in self._sockets:
            with suppress(OSError):
                each.shutdown(socket.SHUT_RDWR)
            each.close()

    def pull(self) -> None:
        self._is_pulled = True

    def _serve(self) -> None:
        with suppress(OSError):
            while True:
                near, _ = self._listener.accept()
                far = socket.create_connection(("127.0.0.1", self._target))
                self._sockets += [near, far]
                for ends in ((near, far), (far, near)):
                    threading.Thread(target=self._carry, args=ends, daemon=True).start()

    def _carry(self, here: socket.socket, there: socket.socket) -> None:
        with suppress(OSError):
            while data := here.recv(1 << 16):
                if not self._is_pulled:
                    there.sendall(data)


def watched(meeting: Meeting) -> "queue.Queue[RanksLost]":
    """What the watch says."""
    said: queue.Queue[RanksLost] = queue.Queue()
    meeting.watch(said.put)
    return said


@pytest.mark.parametrize("host", ["127.0.0.1", "::1"])
def test_ranks_meet_at_one_store(first: Meeting, host: str) -> None:
    store = replace(first, host=host).join(SOON)
    other = replace(first, host=host, rank=2).join(SOON)
    store.set("a", "b")
    assert other.get("a") == b"b"


def test_a_rank_that_is_back_before_rank_0_waits_for_the_new_store(first: Meeting) -> None:
    old = first.join(SOON)
    replace(first, rank=1).join(SOON)
    said = watched(first)
    joined: queue.Queue[TCPStore] = queue.Queue()
    again = replace(first, rank=1)
    thread = threading.Thread(target=lambda: joined.put(again.join(SOON)))
    thread.start()
    # By that rank 0 ends, and its store with it.
    assert "was started anew" in str(said.get(timeout=10))
    assert joined.empty()
    del old
    new = first.join(SOON)
    thread.join(20)
    joined.get_nowait().set("rank 1", "is here")
    assert new.get("rank 1") == b"is here"


def test_rank_0_notices_a_silent_rank_and_no_other(first: Meeting) -> None:
    store = first.join(SOON)
    said = watched(first)
    with beating(store, 1):
        with beating(store, 2):
            time.sleep(0.3)
            assert said.empty()
        error = said.get(timeout=10)
    assert str(error) == "rank 0 lost the others: rank 2 says nothing any more"


def test_the_others_notice_a_silent_rank_0_and_its_end(first: Meeting) -> None:
    store = first.join(SOON)
    with beating(store, 0):
        said = watched(replace(first, rank=1))
        time.sleep(0.3)
        assert said.empty()
    assert "rank 0 says nothing any more" in str(said.get(timeout=10))
    with beating(store, 0):
        said = watched(replace(first, rank=1))
        time.sleep(0.2)
    del store
    assert "rank 1 lost the others" in str(said.get(timeout=10))


def test_a_cable_that_is_pulled_is_noticed_while_it_is(first: Meeting) -> None:
    store = first.join(SOON)
    with beating(store, 0), Cable(first.port) as cable:
        said = watched(replace(first, rank=1, port=cable.port))
        time.sleep(0.3)
        assert said.empty()
        cable.pull()
        assert "rank 0 says nothing any more" in str(said.get(timeout=10))


@pytest.mark.parametrize(
    ("setup", "rule"),
    [
        pytest.param(SETUP | {"--dtype": "float32"}, "--dtype must be the same", id="other"),
        pytest.param({"--dtype": "auto"}, "the version of tandem must be the same", id="none"),
        pytest.param(SETUP | {"--new": "1"}, "it is 1 here and None where rank 0 is", id="more"),
    ],
)
def test_who_has_another_setup_is_refused_by_name_and_takes_no_place(
    first: Meeting, setup: dict[str, str], rule: str
) -> None:
    store = first.join(SOON)
    with pytest.raises(RanksDiverged, match=rule):
        replace(first, rank=1, setup=setup).join(SOON)
    assert json.loads(store.get("setup")) == SETUP
    replace(first, rank=1).join(SOON)


def test_a_rank_0_that_does_not_come_is_given_up(first: Meeting) -> None:
    with pytest.raises(RuntimeError, match="rank 0 did not come"):
        replace(first, rank=1).join(timedelta(seconds=0.3))
