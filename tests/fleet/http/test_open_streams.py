"""Which streams a server's frames leave open, and how those end whose server is gone."""

import json
import math

import pytest

from fleet.http.open_streams import OpenStreams

ERROR: dict[str, object] = {"error": "gone", "error_type": "model_server_gone"}


def opened(version: int, command: str = "GENERATE") -> OpenStreams:
    streams = OpenStreams()
    streams.open(1, command, version)
    return streams


def token(number: int, reason: str | None = None, stream_id: int = 1) -> str:
    fields = {"token": number, "stream_id": stream_id, "logprob": -0.5, "finish_reason": reason}
    return f"TOKEN [{json.dumps(fields)}]"


def objects(text: str | None) -> list[dict[str, object]]:
    if text is None:
        return []
    read = json.loads(text.partition(" ")[2])
    assert isinstance(read, list)
    return read


def test_tokens_of_version_2_are_relayed_unchanged_and_done_ends_the_stream() -> None:
    streams = opened(2)
    for text in (token(1), token(2, "stop")):
        assert streams.relay(text) is text
    assert len(streams) == 1
    done = 'DONE [{"stream_id":1,"finish_reason":"eos"}]'
    assert streams.relay(done) is done
    assert len(streams) == 0


def test_an_error_object_ends_a_stream_and_a_text_with_that_word_does_not() -> None:
    streams = opened(2)
    text = 'TOKEN [{"stream_id":1,"token":5,"finish_reason":null,"text":"\\"error\\""}]'
    assert streams.relay(text) is text
    assert len(streams) == 1
    streams.relay('TOKEN [{"stream_id":1,"error":"no","error_type":"validation"}]')
    assert len(streams) == 0


def test_scores_end_in_either_form() -> None:
    streams = opened(2, "SCORE")
    streams.relay('SCORES [{"stream_id":1,"scores":[]}]')
    assert len(streams) == 0
    streams.open(2, "SCORE", 2)
    streams.relay(token(4, None, 2))
    assert len(streams) == 1
    streams.relay(token(5, "stop", 2))
    assert len(streams) == 0


def test_a_command_ends_with_its_answer() -> None:
    streams = opened(1, "MODEL_INFO")
    assert streams.relay('MSG [{"stream_id":1,"model_info":{}}]') is not None
    assert len(streams) == 0


def test_a_second_stream_of_an_id_leaves_the_first_one_open() -> None:
    streams = opened(2)
    streams.open(1, "GENERATE", 2)
    streams.relay('MSG [{"stream_id":1,"error":"open","error_type":"stream_in_use"}]')
    assert len(streams) == 1


def test_version_1_holds_a_token_back_from_the_fourth_on() -> None:
    streams = opened(1)
    relayed = [streams.relay(token(number)) for number in range(6)]
    assert [text is not None for text in relayed] == [True, True, True, False, True, True]
    last = objects(streams.relay(token(6, "length")))
    assert [each["token"] for each in last] == [5, 6]
    assert len(streams) == 0


def test_version_1_loses_and_repeats_no_token_however_they_are_gathered() -> None:
    streams = opened(1)
    streams.open(2, "GENERATE", 1)
    got: dict[object, list[object]] = {1: [], 2: []}
    tokens = [json.loads(token(n, None, s).partition(" ")[2])[0] for n in range(7) for s in (1, 2)]
    ends = [json.loads(token(9, "stop", s).partition(" ")[2])[0] for s in (2, 1)]
    for text in (f"TOKEN {json.dumps(tokens)}", f"TOKEN {json.dumps(ends)}"):
        for each in objects(streams.relay(text)):
            got[each["stream_id"]].append(each["token"])
    assert got == {1: [0, 1, 2, 3, 4, 5, 6, 9], 2: [0, 1, 2, 3, 4, 5, 6, 9]}
    assert len(streams) == 0


def test_numbers_that_only_python_knows_pass_version_1() -> None:
    streams = opened(1)
    text = 'TOKEN [{"stream_id":1,"token":1,"logprob":-Infinity,"finish_reason":null}]'
    (relayed,) = objects(streams.relay(text))
    assert relayed["logprob"] == -math.inf


def test_a_stream_of_version_1_whose_server_is_gone_ends_by_length_on_a_good_token() -> None:
    streams = opened(1)
    for number in range(5):
        streams.relay(token(number))
    ((command, last),) = streams.end_all(ERROR)
    assert command == "TOKEN"
    assert (last["token"], last["finish_reason"]) == (4, "length")


@pytest.mark.parametrize(("version", "num_tokens"), [(1, 2), (2, 9)])
def test_a_stream_that_is_young_or_of_version_2_ends_by_an_error(
    version: int, num_tokens: int
) -> None:
    streams = opened(version)
    for number in range(num_tokens):
        streams.relay(token(number))
    assert streams.end_all(ERROR) == [("TOKEN", {"stream_id": 1, **ERROR})]
    assert len(streams) == 0


def test_a_server_that_shuts_down_is_noticed_and_its_notice_not_relayed() -> None:
    streams = opened(2)
    queued = 'SYS [{"stream_id":1,"state":"queued"}]'
    assert streams.relay(queued) == queued
    assert not streams.is_server_draining
    assert streams.relay('SYS [{"stream_id":null,"state":"draining"}]') is None
    assert streams.is_server_draining


@pytest.mark.parametrize("version", [1, 2])
def test_a_refusal_of_a_server_that_shuts_down_is_noticed_and_relayed(version: int) -> None:
    streams = opened(version)
    refusal = 'TOKEN [{"stream_id":1,"error":"shutting down","error_type":"draining"}]'
    assert streams.relay(refusal) == refusal
    assert streams.is_server_draining
    assert len(streams) == 0


def test_a_stream_goes_on_in_the_version_in_which_it_was_requested() -> None:
    streams = opened(1)
    for number in range(4):
        streams.relay(token(number))
    streams.open(2, "GENERATE", 2)
    mixed = [json.loads(token(9, reason, s)[6:])[0] for s, reason in ((2, None), (1, "stop"))]
    relayed = objects(streams.relay(f"TOKEN {json.dumps(mixed)}"))
    assert [(each["stream_id"], each["token"]) for each in relayed] == [(2, 9), (1, 3), (1, 9)]
    assert len(streams) == 1
