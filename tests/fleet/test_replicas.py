"""Which replica a request goes to."""

from collections import Counter
from math import ceil
from random import Random

import pytest

from fleet.replicas import (
    LOAD_BOUND,
    MAX_PIECES,
    PIECE_LEN,
    Pick,
    PickKind,
    Replicas,
    pieces_of,
    prompt_pieces,
)

NAMES = [f"http://10.0.0.{number}:3000" for number in range(8)]


def ready(names: list[str], max_known: int = 1 << 18) -> Replicas:
    replicas = Replicas(names, max_known=max_known)
    for name in names:
        replicas.admit(name)
    return replicas


def picked(replicas: Replicas, pieces: list[bytes]) -> Pick:
    found = replicas.pick(pieces)
    assert found is not None
    return found


def text_of(number: int, num_pieces: int = 4) -> bytes:
    return b"".join(b"%d/%d " % (number, k) * PIECE_LEN for k in range(num_pieces))


def keys(count: int) -> list[list[bytes]]:
    return [pieces_of(b"%d" % number, b"") for number in range(count)]


def test_a_conversation_stays_with_the_replica_that_was_sent_its_beginning() -> None:
    replicas = ready(NAMES)
    text = text_of(1)
    home = picked(replicas, pieces_of(text, b""))
    assert home.kind is PickKind.RING
    # It does not depend on the ring: another replica was sent it.
    other = next(name for name in NAMES if name != home.name)
    replicas.begin(other, pieces_of(text, b""))
    longer = pieces_of(text + b"and a turn more" * 100, b"")
    assert picked(replicas, longer) == Pick(other, PickKind.SENT)


def test_the_longest_beginning_wins() -> None:
    replicas = ready(NAMES)
    text = text_of(1)
    replicas.begin(NAMES[1], pieces_of(text, b""))
    replicas.begin(NAMES[2], pieces_of(text[: 2 * PIECE_LEN], b""))
    assert picked(replicas, pieces_of(text, b"")).name == NAMES[1]
    assert picked(replicas, pieces_of(text[: 3 * PIECE_LEN] + b"x" * 999, b"")).name == NAMES[1]
    assert picked(replicas, pieces_of(text[: 2 * PIECE_LEN] + b"x" * 999, b"")).name == NAMES[2]


def test_no_replica_has_more_than_the_bound_of_the_mean() -> None:
    random = Random(1)
    replicas = ready(NAMES)
    running: list[str] = []
    kinds: Counter[PickKind] = Counter()
    for _ in range(5000):
        if running and random.random() < 0.47:
            replicas.end(running.pop(random.randrange(len(running))))
            continue
        # Most share one long beginning.
        group = 0 if random.random() < 0.8 else random.randrange(50)
        pieces = pieces_of(text_of(group) + text_of(random.randrange(10**9)), b"")
        found = picked(replicas, pieces)
        replicas.begin(found.name, pieces)
        running.append(found.name)
        kinds[found.kind] += 1
        mean = len(running) / len(NAMES)
        assert replicas.load(found.name) <= max(2, ceil(LOAD_BOUND * mean))
    assert kinds[PickKind.SENT] > kinds[PickKind.RING] > 100


def test_a_share_of_the_prompts_moves_when_a_replica_leaves_and_comes_back_to_it() -> None:
    replicas = ready(NAMES)
    before = [picked(replicas, key).name for key in keys(4000)]
    replicas.eject(NAMES[3])
    during = [picked(replicas, key).name for key in keys(4000)]
    moved = [old for old, new in zip(before, during, strict=True) if old != new]
    assert set(moved) == {NAMES[3]}
    assert len(moved) / 4000 == pytest.approx(1 / len(NAMES), rel=0.3)
    # Its own go to all the others.
    assert {new for old, new in zip(before, during, strict=True) if old == NAMES[3]} == {
        name for name in NAMES if name != NAMES[3]
    }
    replicas.admit(NAMES[3])
    assert [picked(replicas, key).name for key in keys(4000)] == before


def test_two_fronts_choose_alike() -> None:
    one = ready(NAMES)
    other = ready([*reversed(NAMES)])
    for key in keys(1000):
        assert picked(one, key) == picked(other, key)


def test_what_was_tried_or_is_not_ready_is_not_picked() -> None:
    replicas = Replicas(NAMES[:3])
    assert replicas.pick(keys(1)[0]) is None
    assert (replicas.admit(NAMES[0]), replicas.admit(NAMES[0])) == (True, False)
    assert replicas.ready == NAMES[:1]
    assert picked(replicas, keys(1)[0]).name == NAMES[0]
    assert replicas.pick(keys(1)[0], without={NAMES[0]}) is None
    assert (replicas.eject(NAMES[0]), replicas.eject(NAMES[0])) == (True, False)
    assert replicas.pick([]) is None
    assert not replicas.admit("http://nobody:1")


def test_what_a_replica_that_is_gone_was_sent_is_found_at_another() -> None:
    replicas = ready(NAMES)
    text = text_of(1)
    replicas.begin(NAMES[1], pieces_of(text[: 2 * PIECE_LEN], b""))
    replicas.begin(NAMES[2], pieces_of(text, b"")[2:])
    replicas.eject(NAMES[2])
    assert picked(replicas, pieces_of(text, b"")) == Pick(NAMES[1], PickKind.SENT)


def test_without_a_prompt_the_least_loaded_is_picked() -> None:
    replicas = ready(NAMES)
    for name in NAMES:
        if name != NAMES[5]:
            replicas.begin(name, [])
    assert replicas.pick([]) == Pick(NAMES[5], PickKind.LEAST)


def test_replicas_keep_their_requests_when_others_come_and_go() -> None:
    replicas = ready(NAMES[:2])
    replicas.begin(NAMES[0], [])
    replicas.begin(NAMES[1], [])
    replicas.replace([NAMES[2], NAMES[0]])
    assert replicas.names == [NAMES[0], NAMES[2]]
    assert replicas.ready == NAMES[:1]
    replicas.end(NAMES[1])
    replicas.replace(NAMES[:2])
    replicas.end(NAMES[1])
    assert [replicas.load(name) for name in NAMES[:2]] == [1, 0]


def test_only_so_many_beginnings_are_kept() -> None:
    sent = [pieces_of(text_of(number), b"") for number in range(3)]
    replicas = ready(NAMES, max_known=2 * len(sent[0]) + 1)
    for pieces in sent:
        replicas.begin(NAMES[0], pieces)
        replicas.end(NAMES[0])
    kinds = [picked(replicas, pieces).kind for pieces in sent]
    assert kinds == [PickKind.SENT, PickKind.SENT, PickKind.SENT]
    # Of the first one its beginning alone.
    replicas.begin(NAMES[0], pieces_of(b"another", b""))
    assert picked(replicas, sent[0]).kind is PickKind.RING


def test_a_prompt_has_a_piece_for_each_of_its_beginnings() -> None:
    text = text_of(1, 3)
    pieces = pieces_of(text, b"")
    assert len(pieces) == len(text) // PIECE_LEN
    assert pieces_of(text + b"more", b"") == pieces
    assert pieces_of(text[:-PIECE_LEN] + b"x" * PIECE_LEN, b"")[:-1] == pieces[:-1]
    assert not set(pieces_of(text, b"key")) & set(pieces)
    assert len(pieces_of(b"short", b"")) == 1
    assert pieces_of(b"short", b"") != pieces_of(b"other", b"")
    assert pieces_of(b"", b"") == []
    assert len(pieces_of(b"x" * (MAX_PIECES + 9) * PIECE_LEN, b"")) == MAX_PIECES


@pytest.mark.parametrize(
    ("fields", "longer"),
    [
        pytest.param({"inputs": "a"}, {"inputs": "ab"}, id="tgi"),
        pytest.param({"prompt": [1, 2]}, {"prompt": [1, 2, 3]}, id="tokens"),
        pytest.param({"input": [{"role": "user", "content": "a"}]}, None, id="responses"),
        pytest.param(
            {"system": "s", "messages": [{"role": "user", "content": "a"}]}, None, id="messages"
        ),
    ],
)
def test_a_growing_prompt_of_each_api_keeps_its_beginnings(
    fields: dict[str, object], longer: dict[str, object] | None
) -> None:
    def long(given: dict[str, object]) -> dict[str, object]:
        return {**given, "model": "m" * 2 * PIECE_LEN, "temperature": 1}

    turn = {"role": "assistant", "content": "b" * PIECE_LEN}
    longer = longer or {
        name: [*value, turn] if isinstance(value, list) else value for name, value in fields.items()
    }
    before = prompt_pieces(long(fields), b"")
    after = prompt_pieces(long(longer), b"")
    assert len(before) >= 2
    assert after[: len(before)] == before
    assert prompt_pieces({"temperature": 1}, b"") == []
