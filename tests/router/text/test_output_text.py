"""Tokens that wait until it is known how much of their text is shown."""

from hypothesis import given
from hypothesis import strategies as st

from router.request.request import TokenGenerated, TokenLogprob
from router.text.output_text import HeldTokens


def token(text: str) -> TokenGenerated:
    token = TokenLogprob(5, text, -0.5)
    return TokenGenerated(token, "", (token,))


def texts(events: list[TokenGenerated]) -> list[str]:
    return [event.token.text for event in events]


def test_a_token_is_told_once_all_of_it_is_shown() -> None:
    reported = HeldTokens(keeps_alternatives=False)
    reported.add(token("ab"), 2)
    reported.add(token("cd"), 2)
    reported.show(3)
    assert texts(list(reported.whole())) == ["ab"]
    assert list(reported.whole()) == []
    reported.show(1)
    assert texts(list(reported.whole())) == ["cd"]


def test_a_cut_token_keeps_its_alternatives_only_where_that_is_wanted() -> None:
    for keeps in (True, False):
        reported = HeldTokens(keeps_alternatives=keeps)
        reported.add(token("abcd"), 4)
        reported.show(2)
        (event,) = reported.cut()
        assert event.token.text == "ab"
        assert bool(event.top_tokens) is keeps


@given(st.lists(st.text("xyz", max_size=4), max_size=8), st.data())
def test_what_is_told_is_what_is_shown(pieces: list[str], data: st.DataObject) -> None:
    reported = HeldTokens(keeps_alternatives=True)
    whole = "".join(pieces)
    num_shown = data.draw(st.integers(0, len(whole)))
    told: list[TokenGenerated] = []
    for piece in pieces:
        reported.add(token(piece), len(piece))
        told += reported.whole()
    reported.show(num_shown)
    told += reported.cut()
    assert "".join(texts(told)) == whole[:num_shown]
    assert len(told) == len(pieces)
