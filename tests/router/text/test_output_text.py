"""What of an output is shown: held back, cut at stop strings, at its end."""

import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from router.request.request import TokenGenerated, TokenLogprob
from router.text.output_text import HeldTokens, StopMatcher
from tests.hypothesis_profiles import more_examples


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


def follow(matcher: StopMatcher, chunks: list[str]) -> str:
    """Everything that `matcher` shows of `chunks`."""
    return "".join([*(matcher.push(chunk) for chunk in chunks), matcher.flush()])


def first_stop(text: str, stops: tuple[str, ...]) -> str | None:
    """The rule, written as a search over all ends and beginnings."""
    for end in range(len(text) + 1):
        for start in range(end):
            if text[start:end] in stops:
                return text[start:end]
    return None


def end_of(text: str, kept: tuple[str, ...], dropped: tuple[str, ...]) -> tuple[str, str | None]:
    """What is shown of a text and what ended it: the rule for strings of both sorts."""
    for end in range(1, len(text) + 1):
        for stops, keeps in ((dropped, False), (kept, True)):
            found = [stop for stop in stops if text[:end].endswith(stop)]
            if found:
                longest = max(found, key=len)
                return text[: end if keeps else end - len(longest)], longest
    return text, None


def shown_text(text: str, stops: tuple[str, ...], keep: bool) -> str:
    stop = first_stop(text, stops)
    if stop is None:
        return text
    ends = [end for end in range(len(text) + 1) if text[:end].endswith(stops)]
    return text[: ends[0]] if keep else text[: ends[0] - len(stop)]


def test_a_stop_string_across_pushes_is_found_and_left_out() -> None:
    matcher = StopMatcher(("###",), keep=False)
    assert [matcher.push(text) for text in ["one #", "#", "# two"]] == ["one ", "", ""]
    assert matcher.matched == "###"
    assert matcher.flush() == ""


def test_a_stop_string_across_pushes_stays_when_kept() -> None:
    matcher = StopMatcher(("###",), keep=True)
    assert [matcher.push(text) for text in ["one #", "#", "# two"]] == ["one #", "#", "#"]
    assert matcher.matched == "###"


def test_a_mark_of_the_format_neither_contains_a_stop_string_nor_becomes_a_part_of_one() -> None:
    matcher = StopMatcher(("a|b",), keep=False)
    assert matcher.push("xa") == "x"
    assert matcher.pass_by("<a|b>") == "a<a|b>"
    assert matcher.push("|b") == "|b"
    assert matcher.push("a|b") == ""
    assert matcher.pass_by("<a|b>") == ""


def test_nothing_is_shown_after_a_stop_string() -> None:
    matcher = StopMatcher(("b",), keep=True)
    assert matcher.push("abc") == "ab"
    assert (matcher.push("more"), matcher.flush()) == ("", "")


def test_what_does_not_become_a_stop_string_is_shown_as_soon_as_that_is_known() -> None:
    matcher = StopMatcher(("\n\nUser:",), keep=False)
    pushes = [matcher.push(text) for text in ["Hi\n", "\nUse", "ful", "\n"]]
    assert pushes == ["Hi", "", "\n\nUseful", ""]
    assert matcher.flush() == "\n"
    assert matcher.matched is None


@pytest.mark.parametrize(
    ("stops", "text", "matched", "shown"),
    [
        pytest.param(("cd", "b"), "abcd", "b", "a", id="the one complete first"),
        pytest.param(("abcd", "bc"), "abcd", "bc", "a", id="not the one begun first"),
        pytest.param(("c", "abc", "bc"), "xabc", "abc", "x", id="the longest of one end"),
        pytest.param(("abc", "ab"), "abc", "ab", "", id="not the longest of one beginning"),
        pytest.param(("aab",), "aaab", "aab", "a", id="begun again inside itself"),
        pytest.param(("ab", "ab"), "ab", "ab", "", id="the same twice"),
        pytest.param(("\ufffd",), "a\ufffd", "\ufffd", "a", id="a replacement character"),
        pytest.param(("x",), "", None, "", id="no text"),
        pytest.param((), "abc", None, "abc", id="no stop strings"),
    ],
)
def test_the_stop_string_that_ends_a_text(
    stops: tuple[str, ...], text: str, matched: str | None, shown: str
) -> None:
    matcher = StopMatcher(stops, keep=False)
    assert follow(matcher, [text]) == shown
    assert matcher.matched == matched


letters = st.text("ab", max_size=12)
stop_strings = st.lists(st.text("ab", min_size=1, max_size=4), max_size=4).map(tuple)


@given(chunks=st.lists(letters, max_size=6), stops=stop_strings, keep=st.booleans())
@more_examples(4)
def test_any_chunking_shows_what_the_rule_says(
    chunks: list[str], stops: tuple[str, ...], keep: bool
) -> None:
    matcher = StopMatcher(stops, keep)
    text = "".join(chunks)
    assert follow(matcher, chunks) == shown_text(text, stops, keep)
    assert matcher.matched == first_stop(text, stops)


@given(chunks=st.lists(letters, max_size=6), stops=stop_strings)
@more_examples(4)
def test_only_the_beginning_of_a_stop_string_is_held_back(
    chunks: list[str], stops: tuple[str, ...]
) -> None:
    matcher = StopMatcher(stops, keep=False)
    text = shown = ""
    for chunk in chunks:
        text += chunk
        shown += matcher.push(chunk)
        if matcher.matched is not None:
            return
        held = text[len(shown) :]
        longest = max(
            (stop[:n] for stop in stops for n in range(len(stop)) if text.endswith(stop[:n])),
            key=len,
            default="",
        )
        assert held == longest


@given(chunks=st.lists(letters, max_size=6), kept=stop_strings, dropped=stop_strings)
@more_examples(4)
def test_some_stop_strings_stay_while_others_are_left_out(
    chunks: list[str], kept: tuple[str, ...], dropped: tuple[str, ...]
) -> None:
    matcher = StopMatcher(kept, keep=True, dropped=dropped)
    shown = follow(matcher, chunks)
    assert (shown, matcher.matched) == end_of("".join(chunks), kept, dropped)


@pytest.mark.parametrize("keep", [True, False])
def test_a_phrase_that_is_left_out_is_held_back_and_nothing_else(keep: bool) -> None:
    matcher = StopMatcher(("ab",), keep, dropped=("xyz",))
    assert [matcher.push(text) for text in ["1a", "2x", "y3"]] == [
        "1a" if keep else "1",
        *(["2", "xy3"] if keep else ["a2", "xy3"]),
    ]
    assert (matcher.push("xyz"), matcher.matched) == ("", "xyz")


def test_a_long_stop_string_that_keeps_almost_matching_takes_linear_time() -> None:
    matcher = StopMatcher(("a" * 999 + "b", "a" * 500 + "c"), keep=False)
    begin_s = time.process_time()
    shown = follow(matcher, ["a" * 10] * 10_000)
    # Comparing every end with every beginning would take 10 ** 8 steps.
    assert time.process_time() - begin_s < 2
    assert shown == "a" * 100_000
