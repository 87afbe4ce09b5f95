"""Responses that are remembered: bounds, owners, chains."""

import pytest

from router.http.responses.schema import FunctionCall, FunctionOutput, Item, MessageItem
from router.http.responses.store import ResponseStore, Stored

ME = b"me"
YOU = b"you"


def stored(number: int, previous_id: str | None = None, text: str = "") -> Stored:
    given = (MessageItem(f"msg_q{number}", "user", (f"question {number}{text}",)),)
    answered = (MessageItem(f"msg_a{number}", "assistant", (f"answer {number}",)),)
    return Stored(b"{}", given, answered, previous_id)


def said(items: tuple[Item, ...]) -> list[str]:
    return [text for item in items for text in item.texts]


def test_a_response_is_known_to_its_owner_alone() -> None:
    store = ResponseStore()
    one = stored(1)
    store.keep(ME, "resp_1", one)

    assert store.get(ME, "resp_1") is one
    assert store.get(YOU, "resp_1") is None
    assert not store.forget(YOU, "resp_1")
    with pytest.raises(KeyError, match="resp_1"):
        store.conversation(YOU, "resp_1")


def test_a_conversation_is_the_chain_of_its_responses() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", stored(2, "resp_1"))
    store.keep(ME, "resp_3", stored(3, "resp_2"))

    assert said(store.conversation(ME, "resp_3")) == [
        "question 1", "answer 1", "question 2", "answer 2", "question 3", "answer 3",
    ]  # fmt: skip
    assert said(store.conversation(ME, "resp_1")) == ["question 1", "answer 1"]


def test_what_goes_on_from_a_forgotten_response_cannot_be_gone_on_from() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", stored(2, "resp_1"))

    assert store.forget(ME, "resp_1")
    assert store.get(ME, "resp_2") is not None
    with pytest.raises(KeyError, match="resp_1"):
        store.conversation(ME, "resp_2")


def test_an_item_is_known_to_its_owner_while_a_response_holds_it() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", Stored(b"{}", stored(1).given, stored(2).answered, None))

    assert store.item(ME, "msg_a1") == stored(1).answered[0]
    assert store.item(YOU, "msg_a1") is None
    store.forget(ME, "resp_1")
    assert store.item(ME, "msg_a1") is None
    assert store.item(ME, "msg_q1") == stored(1).given[0]
    store.forget(ME, "resp_2")
    assert store.item(ME, "msg_q1") is None


def test_an_item_stays_known_while_an_older_response_holds_it() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    again = (*stored(1).items, *stored(1).items)
    store.keep(ME, "resp_2", Stored(b"{}", again, stored(2).answered, None))
    store.forget(ME, "resp_2")

    assert store.item(ME, "msg_a1") == stored(1).answered[0]
    assert store.item(ME, "msg_a2") is None
    store.forget(ME, "resp_1")
    assert store.item(ME, "msg_a1") is None


def test_the_least_recently_used_is_forgotten_first() -> None:
    store = ResponseStore(max_responses=2)
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", stored(2))
    store.get(ME, "resp_1")
    store.keep(ME, "resp_3", stored(3))

    assert store.get(ME, "resp_2") is None
    assert store.get(ME, "resp_1") is not None
    assert len(store) == 2


def test_going_on_uses_the_whole_conversation() -> None:
    store = ResponseStore(max_responses=3)
    store.keep(ME, "resp_1", stored(1))
    store.keep(ME, "resp_2", stored(2, "resp_1"))
    store.keep(ME, "resp_3", stored(3))
    store.conversation(ME, "resp_2")
    store.keep(ME, "resp_4", stored(4, "resp_2"))

    assert store.get(ME, "resp_3") is None
    assert len(store.conversation(ME, "resp_4")) == 6


def test_the_bytes_of_all_responses_are_bounded() -> None:
    large = stored(1, text="é" * 1000)
    store = ResponseStore(max_bytes=3 * large.num_bytes)
    for number in range(10):
        store.keep(ME, f"resp_{number}", large)

    assert large.num_bytes > 2000
    assert len(store) == 3
    assert store.num_bytes == 3 * large.num_bytes
    assert store.get(ME, "resp_9") is large


def test_a_text_weighs_what_it_takes_in_memory() -> None:
    plain, wide = (
        Stored(b"{}", (MessageItem("msg", "user", (text,)),), (), None)
        for text in ("a" * 10_000, "a" * 9_999 + "🙂")
    )

    assert plain.num_bytes > 10_000
    assert wide.num_bytes > 40_000


@pytest.mark.parametrize(
    "item",
    [
        FunctionCall("fc", "call", "look", "a" * 10_000),
        FunctionOutput("fco", "call", "a" * 10_000),
        FunctionOutput("fco", "call", ("a" * 5000, "a" * 5000)),
    ],
    ids=lambda item: type(item).__name__,
)
def test_calls_and_their_outputs_weigh_what_they_hold(item: Item) -> None:
    assert Stored(b"{}", (), (item,), None).num_bytes > 10_000


def test_many_empty_messages_are_not_for_free() -> None:
    items = tuple(MessageItem(f"msg_{number}", "user", ("",)) for number in range(1000))
    crowd = Stored(b"{}", items, (), None)

    assert crowd.num_bytes > 1000 * 500


def test_a_response_larger_than_all_the_room_is_not_remembered() -> None:
    store = ResponseStore(max_bytes=100)
    store.keep(ME, "resp_1", stored(1))

    assert (len(store), store.num_bytes) == (0, 0)


def test_forgetting_gives_the_bytes_back() -> None:
    store = ResponseStore()
    store.keep(ME, "resp_1", stored(1))
    store.forget(ME, "resp_1")

    assert (len(store), store.num_bytes) == (0, 0)
    assert not store.forget(ME, "resp_1")
