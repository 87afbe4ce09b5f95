"""What of a stream may be passed on, and what the next replica is told."""

import orjson

from fleet.tagged_stream import TaggedStream

BEGIN = b': tandem begin {"cached": [null, 3], "more": [1.50]}\n\n'


def test_events_wait_for_the_tag_behind_them() -> None:
    stream = TaggedStream()
    assert stream.feed(BEGIN + b"data: 1\n\ndata: 2\n") == b""
    assert stream.feed(b"\n: tandem out 0 7,8") == b""
    assert stream.feed(b"\n\ndata: 3\n\n") == b"data: 1\n\ndata: 2\n\n"
    assert stream.has_shown
    assert stream.can_move
    assert orjson.loads(stream.so_far()) == {
        "begin": {"cached": [None, 3], "more": [1.5]},
        "out": [[7, 8], []],
    }
    # Nobody rounds what it does not know.
    assert b'{"cached": [null, 3], "more": [1.50]}' in stream.so_far()


def test_what_waits_is_lost_with_its_replica_and_sent_at_the_end() -> None:
    stream = TaggedStream()
    stream.feed(BEGIN + b"data: 1\n\n: tandem out 1 7\n\ndata: 2\n\n: tand")
    stream.moved()
    assert stream.feed(b': tandem begin {"seed": 6}\n\ndata: 2\n\n') == b""
    assert stream.feed(b": tandem out 0 9\n\n: tandem out 1 -1\n\ndata: [D") == b"data: 2\n\n"
    told = {"begin": {"seed": 6}, "out": [[9], [7, -1]]}
    assert orjson.loads(stream.so_far()) == told
    assert stream.feed(b"ONE]\n\nrest") == b""
    assert stream.finish() == b"data: [DONE]\n\nrest"


def test_signs_of_life_pass_unless_events_wait_before_them() -> None:
    stream = TaggedStream()
    assert stream.feed(b":\n\n") == b":\n\n"
    assert not stream.has_shown
    assert stream.feed(BEGIN + b":\n\n") == b":\n\n"
    assert stream.feed(b"data: 1\n\n:\n\n") == b""
    assert stream.feed(b": tandem out 0 \n\n") == b"data: 1\n\n:\n\n"
    assert orjson.loads(stream.so_far())["out"] == [[], []]


def test_a_stream_without_tags_is_passed_on_as_it_comes_and_does_not_move() -> None:
    stream = TaggedStream()
    assert stream.feed(b"data: 1") == b""
    assert stream.feed(b"\n\ndata: 2\n\nda") == b"data: 1\n\ndata: 2\n\nda"
    assert stream.feed(b"ta: 3") == b"ta: 3"
    assert stream.finish() == b""
    assert stream.has_shown
    assert not stream.can_move
