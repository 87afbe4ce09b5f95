"""What is framed arrives, whatever the sizes, and a closed channel is no message."""

import json
import socket
from threading import Thread

from processes.zygote.frames import HEADER, frame, receive


def test_a_frame_tells_its_length_in_bytes_and_not_in_characters() -> None:
    framed = frame({"a": "é"}, 7)
    assert HEADER.unpack(framed[: HEADER.size]) == (len(framed) - HEADER.size, 7)
    assert json.loads(framed[HEADER.size :]) == {"a": "é"}


def test_fields_and_data_arrive_as_they_were_sent() -> None:
    ours, theirs = socket.socketpair()
    data = bytes(range(256)) * 9000
    with ours, theirs:
        sending = Thread(target=ours.sendall, args=(frame({"n": 1}, len(data)) + data,))
        sending.start()
        arrived = receive(theirs)
        sending.join()
    assert arrived is not None
    assert (arrived.fields, arrived.data) == ({"n": 1}, data)


def test_a_message_that_is_cut_is_none() -> None:
    ours, theirs = socket.socketpair()
    with theirs:
        with ours:
            ours.sendall(frame({"n": 1}, 2) + b"1")
        assert receive(theirs) is None
