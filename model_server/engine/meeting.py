"""How ranks find one another, and notice that one is gone: by torch's TCPStore, which rank 0 has.

    setup        what all must have alike, as rank 0 has it
    rank/R       which process is rank R
    address/R    where the router reaches it
    beat/R       changes each second
    again        a rank's place was taken when it came: it was started anew

Whoever reaches the store can write to it, so all that is read there are texts and JSON.
"""

import json
import os
import socket
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import timedelta
from itertools import count
from queue import Empty, SimpleQueue

from torch._C._distributed_c10d import TCPStore

from model_server.errors import RanksDiverged, RanksLost

_SETUP = "setup"
_AGAIN = "again"
_BEAT_S = 1.0
_SILENCE_S = 10.0
_RETRY_S = 0.2
# How long a machine that is there may take to accept a connection, and to answer.
_CONNECT_S = 2.0
_ANSWER_S = 5.0


@dataclass(frozen=True, slots=True)
class Meeting:
    """The place where ranks meet, seen by one of them.

    `setup`: the names and values that all ranks must have alike.
    """

    rank: int
    world_size: int
    host: str
    port: int
    setup: Mapping[str, str]

    def join(self, timeout: timedelta) -> TCPStore:
        """The store, in which this process has its place. Raises OSError, RuntimeError and
        RanksDiverged.

        torch's own listener takes every interface, so rank 0 binds one to the address itself.
        Another rank that was started anew may come before rank 0 was: in the old store its place is
        taken, and it waits for the new one.
        """
        if self.rank == 0:
            store = self._host(timeout)
            store.set(_SETUP, json.dumps(dict(self.setup)))
            return store
        deadline_s = time.monotonic() + timeout.total_seconds()
        me = f"{socket.gethostname()}/{os.getpid()}/{time.time_ns()}"
        while time.monotonic() < deadline_s:
            # The name may lead to another machine by now, and torch's own attempts take longer.
            with suppress(OSError, RuntimeError):
                socket.create_connection((self.host, self.port), _CONNECT_S).close()
                store = self._connect(timedelta(seconds=_ANSWER_S))
                self._require_same(json.loads(store.get(_SETUP)))
                if store.compare_set(f"rank/{self.rank}", "", me).decode() == me:
                    store.set_timeout(timeout)
                    return store
                store.set(_AGAIN, me)
            time.sleep(_RETRY_S)
        raise RuntimeError("rank 0 did not come")

    def watch(self, on_lost: Callable[[RanksLost], None]) -> None:
        """Calls `on_lost`, from a thread, once rank 0 is gone or, on rank 0, any other one.

        The end of a rank breaks no collective where none is under way, and a machine that is cut
        off closes no connection.
        """
        threading.Thread(target=self._watch, args=(on_lost,), name="watch", daemon=True).start()

    def _watch(self, on_lost: Callable[[RanksLost], None]) -> None:
        try:
            store = self._connect(timedelta(seconds=_SILENCE_S))
            if self.rank == 0:
                self._hear_all(store)
            else:
                self._hear_first(store)
        except RuntimeError as error:
            on_lost(RanksLost(f"rank {self.rank} lost the others: {error}"))

    def _hear_all(self, store: TCPStore) -> None:
        """Raises RuntimeError when one that was heard is silent, or was started anew."""
        heard: dict[int, tuple[bytes, float]] = {}
        for beat in count():
            store.set("beat/0", str(beat))
            if store.check([_AGAIN]):
                raise RuntimeError("one of them was started anew")
            for rank in range(1, self.world_size):
                if store.check([f"beat/{rank}"]):
                    _hear(heard, rank, store.get(f"beat/{rank}"))
            time.sleep(_BEAT_S)

    def _hear_first(self, store: TCPStore) -> None:
        """Raises RuntimeError when it is gone or silent.

        Another thread reads: where a cable is pulled a read does not return, whatever its timeout.
        """
        said: SimpleQueue[bytes | RuntimeError] = SimpleQueue()
        reading = (store, said.put)
        threading.Thread(target=self._exchange_beats, args=reading, daemon=True).start()
        heard: dict[int, tuple[bytes, float]] = {}
        while True:
            try:
                beat = said.get(timeout=_SILENCE_S)
            except Empty:
                raise _silence_of(0) from None
            if isinstance(beat, RuntimeError):
                raise beat
            _hear(heard, 0, beat)

    def _exchange_beats(self, store: TCPStore, say: Callable[[bytes | RuntimeError], None]) -> None:
        try:
            for beat in count():
                store.set(f"beat/{self.rank}", str(beat))
                say(store.get("beat/0"))
                time.sleep(_BEAT_S)
        except RuntimeError as error:
            say(error)

    def _host(self, timeout: timedelta) -> TCPStore:
        family, *_, place = socket.getaddrinfo(self.host, self.port, type=socket.SOCK_STREAM)[0]
        # The store closes it.
        listener = socket.create_server(place[:2], family=family).detach()
        return TCPStore(
            self.host,
            self.port,
            is_master=True,
            timeout=timeout,
            wait_for_workers=False,
            master_listen_fd=listener,
        )

    def _connect(self, timeout: timedelta) -> TCPStore:
        return TCPStore(self.host, self.port, timeout=timeout, wait_for_workers=False)

    def _require_same(self, first: Mapping[str, str]) -> None:
        """Raises RanksDiverged, with the name of what rank 0 has otherwise."""
        for name in dict.fromkeys([*first, *self.setup]):
            mine = self.setup.get(name)
            other = first.get(name)
            if mine != other:
                raise RanksDiverged(
                    f"{name} must be the same on all machines: it is {mine} here and {other} where"
                    " rank 0 is"
                )


def _hear(heard: dict[int, tuple[bytes, float]], rank: int, beat: bytes) -> None:
    """Raises RuntimeError when the rank has said nothing else for too long."""
    last, since_s = heard.get(rank, (b"", 0.0))
    if beat != last:
        heard[rank] = (beat, time.monotonic())
    elif time.monotonic() - since_s > _SILENCE_S:
        raise _silence_of(rank)


def _silence_of(rank: int) -> RuntimeError:
    return RuntimeError(f"rank {rank} says nothing any more")
