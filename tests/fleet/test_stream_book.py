"""Which streams are open, by what passes; and the last words of those whose server is gone."""

import json
import math

import pytest

from fleet.http.stream_book import StreamBook

ERROR: dict[str, object] = {"error": "gone", "error_type": "model_server_gone"}
# Of a step: the tokens of two streams, of which the first goes on.
PAIRS = ((2, None), (1, "stop"))


def book(version: int, command: str = "GENERATE") -> StreamBook:
    made = StreamBook()
    made.version = version
    made.open(1, command)
    return made


def token(number: int, reason: str | None = None, stream_id: int = 1) -> str:
    told = {"token": number, "stream_id": stream_id, "logprob": -0.5, "finish_reason": reason}
    return f"TOKEN [{json.dumps(told)}]"


def objects(text: str | None) -> list[dict[str, object]]:
    if text is None:
        return []
    told = json.loads(text.partition(" ")[2])
    assert isinstance(told, list)
    return told


def test_tokens_of_version_2_pass_as_they_came_and_done_ends_the_stream() -> None:
    passing = book(2)
    for text in (token(1), token(2, "stop")):
        assert passing.passes(text) is text
    assert 1 in passing
    done = 'DONE [{"stream_id":1,"finish_reason":"eos"}]'
    assert passing.passes(done) is done
    assert len(passing) == 0


def test_an_error_object_ends_a_stream_and_a_text_that_says_error_does_not() -> None:
    passing = book(2)
    said = 'TOKEN [{"stream_id":1,"token":5,"finish_reason":null,"text":"\\"error\\""}]'
    assert passing.passes(said) is said
    assert 1 in passing
    passing.passes('TOKEN [{"stream_id":1,"error":"no","error_type":"validation"}]')
    assert 1 not in passing


def test_scores_end_in_either_form() -> None:
    passing = book(2, "SCORE")
    passing.passes('SCORES [{"stream_id":1,"scores":[]}]')
    assert 1 not in passing
    passing.open(2, "SCORE")
    passing.passes(token(4, None, 2))
    assert 2 in passing
    passing.passes(token(5, "stop", 2))
    assert 2 not in passing


def test_commands_end_with_their_answer() -> None:
    passing = book(1, "MODEL_INFO")
    assert passing.passes('MSG [{"stream_id":1,"model_info":{}}]') is not None
    assert 1 not in passing


def test_version_1_keeps_a_token_back_from_the_fourth_on() -> None:
    passing = book(1)
    passed = [passing.passes(token(number)) for number in range(6)]
    assert [text is not None for text in passed] == [True, True, True, False, True, True]
    last = objects(passing.passes(token(6, "length")))
    assert [each["token"] for each in last] == [5, 6]
    assert 1 not in passing


def test_version_1_loses_and_repeats_no_token_however_they_are_gathered() -> None:
    passing = book(1)
    passing.open(2, "GENERATE")
    got: dict[object, list[object]] = {1: [], 2: []}
    frame = [json.loads(token(n, None, s).partition(" ")[2])[0] for n in range(7) for s in (1, 2)]
    ends = [json.loads(token(9, "stop", s).partition(" ")[2])[0] for s in (2, 1)]
    for text in (f"TOKEN {json.dumps(frame)}", f"TOKEN {json.dumps(ends)}"):
        for each in objects(passing.passes(text)):
            got[each["stream_id"]].append(each["token"])
    assert got == {1: [0, 1, 2, 3, 4, 5, 6, 9], 2: [0, 1, 2, 3, 4, 5, 6, 9]}
    assert len(passing) == 0


def test_numbers_that_only_python_knows_pass_version_1() -> None:
    passing = book(1)
    text = 'TOKEN [{"stream_id":1,"token":1,"logprob":-Infinity,"finish_reason":null}]'
    (told,) = objects(passing.passes(text))
    assert told["logprob"] == -math.inf


def test_a_broken_stream_of_version_1_ends_by_length_on_a_good_token() -> None:
    passing = book(1)
    for number in range(5):
        passing.passes(token(number))
    command, told = passing.breaks_off(1, ERROR)
    assert command == "TOKEN"
    assert (told["token"], told["finish_reason"]) == (4, "length")


def test_a_broken_stream_that_is_young_or_of_version_2_ends_by_an_error() -> None:
    for version, num_tokens in ((1, 2), (2, 9)):
        passing = book(version)
        for number in range(num_tokens):
            passing.passes(token(number))
        assert passing.breaks_off(1, ERROR) == ("TOKEN", {"stream_id": 1, **ERROR})


@pytest.mark.parametrize("version", [1, 2])
def test_a_servers_refusal_to_take_more_is_told_in_other_words(version: int) -> None:
    refusal = 'TOKEN [{"stream_id":1,"error":"shutting down","error_type":"draining"}]'
    passing = book(version)
    assert objects(passing.passes(refusal, ERROR)) == [{"stream_id": 1, **ERROR}]
    assert passing.is_leaving
    assert len(passing) == 0
    assert objects(book(version).passes(refusal))[0]["error_type"] == "draining"


def test_a_servers_own_draining_is_no_news_for_the_client() -> None:
    passing = book(2)
    assert passing.passes('SYS [{"stream_id":null,"state":"draining"}]') is None
    queued = 'SYS [{"stream_id":1,"state":"queued"}]'
    assert objects(passing.passes(queued)) == [{"stream_id": 1, "state": "queued"}]


def test_a_stream_goes_on_in_the_version_in_which_it_was_asked_for() -> None:
    passing = book(1)
    for number in range(4):
        passing.passes(token(number))
    passing.version = 2
    passing.open(2, "GENERATE")
    mixed = [json.loads(token(9, reason, stream_id)[6:])[0] for stream_id, reason in PAIRS]
    passed = objects(passing.passes(f"TOKEN {json.dumps(mixed)}"))
    assert [(each["stream_id"], each["token"]) for each in passed] == [(2, 9), (1, 3), (1, 9)]
    assert passing.ids() == [2]
    passing.version = 1
    passing.passes('DONE [{"stream_id":2,"finish_reason":"eos"}]')
    assert len(passing) == 0


def test_system_messages_are_for_clients_of_version_2_whatever_the_stream_is_of() -> None:
    passing = book(2)
    passing.version = 1
    assert passing.passes('SYS [{"stream_id":1,"state":"queued"}]') is None
    assert passing.passes('SYS [{"stream_id":null,"state":"draining"}]') is None
    assert passing.is_leaving


@pytest.mark.parametrize(
    ("command", "parts"),
    [
        ("GENERATE", {"text": "", "tail": ""}),
        ("BEAMS", {"beams": [], "ended": [], "dropped": []}),
    ],
)
def test_what_is_cancelled_before_it_began_ends_well_in_version_2(
    command: str, parts: dict[str, object]
) -> None:
    passing = book(2, command)
    passing.version = 1
    usage = {"prompt_tokens": 0, "cached_tokens": 0, "output_tokens": 0}
    done = {"stream_id": 1, "finish_reason": "cancelled", **parts, "usage": usage}
    assert passing.cancels(1) == ("DONE", done)
    assert len(passing) == 0


@pytest.mark.parametrize(
    ("version", "command", "kind"),
    [
        (1, "GENERATE", "TOKEN"),
        (1, "BEAMS", "TOKEN"),
        (2, "SCORE", "TOKEN"),
        (2, "BUFFER", "MSG"),
    ],
)
def test_what_is_cancelled_before_it_began_ends_by_an_error_elsewhere(
    version: int, command: str, kind: str
) -> None:
    passing = book(version, command)
    said, told = passing.cancels(1)
    assert (said, told["stream_id"], told["error_type"]) == (kind, 1, "cancelled")
    assert len(passing) == 0
