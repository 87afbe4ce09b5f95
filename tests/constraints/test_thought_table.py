"""What tokens do to the marks of a thought, against reading the text as a whole."""

from hypothesis import given
from hypothesis import strategies as st

from constraints.bitmask import allowed_ids
from constraints.spec import MAX_SPACES
from constraints.thought_table import ThoughtTable, spaced_tokens
from constraints.vocabulary import Vocabulary
from tests.constraints.cases import vocabulary_of

texts = st.text("ab<", min_size=1, max_size=4)


def vocabulary_with(longer: list[str]) -> Vocabulary:
    singles = [b"a", b"b", b"<", b" ", b"\n", b"\t", b"\r"]
    tokens = dict.fromkeys([*singles, *(text.encode() for text in longer)])
    return vocabulary_of([*tokens, b""], [len(tokens)])


@given(closer=texts, longer=st.lists(texts), before=texts)
def test_tokens_complete_a_closer_where_the_text_does(
    closer: str, longer: list[str], before: str
) -> None:
    vocabulary = vocabulary_with(longer)
    table = ThoughtTable(vocabulary, "", closer)
    mark = closer.encode()
    closing, _ = table.read_closing(0, before.encode())
    if mark in before.encode():
        assert closing == table.closed
        return
    crossing = []
    for token_id, token in enumerate(vocabulary.tokens):
        end = (before.encode() + token).find(mark) + len(mark)
        is_closed = mark in before.encode() + token
        after, num_read = table.read_closing(closing, token)
        assert (after == table.closed) == is_closed
        if is_closed:
            assert num_read == end - len(before.encode())
        if is_closed and num_read < len(token) and not token.endswith(mark):
            crossing.append(token_id)
    assert set(crossing) <= set(table.crossing(closing))


@given(closer=texts, longer=st.lists(texts), before=texts)
def test_the_tokens_of_the_rest_complete_a_closer_and_no_more(
    closer: str, longer: list[str], before: str
) -> None:
    vocabulary = vocabulary_with(longer)
    table = ThoughtTable(vocabulary, "", closer)
    closing, _ = table.read_closing(0, before.encode())
    text = before
    num_tokens = 0
    while closing != table.closed:
        token_id = table.closing_ids[closing][0]
        assert token_id in allowed_ids(table.thought_row(closing))
        token = vocabulary.tokens[token_id]
        closing, num_read = table.read_closing(closing, token)
        assert num_read == len(token)
        text += token.decode()
        num_tokens += 1
    assert num_tokens <= table.max_closing_len
    assert text.endswith(closer) or closer in before


@given(
    opener=texts,
    longer=st.lists(st.text("ab< \n", min_size=1, max_size=5)),
    begun=st.text("ab< \n"),
)
def test_an_opener_is_read_as_the_text_has_it(opener: str, longer: list[str], begun: str) -> None:
    vocabulary = vocabulary_with(longer)
    table = ThoughtTable(vocabulary, opener, "<b")
    read = table.read_opening(0, begun.encode())
    if read is None or read[0] == table.opened:
        return
    legal, completing = table.opening_rows(read[0])
    for token_id, token in enumerate(vocabulary.tokens[:-1]):
        body = (begun + token.decode()).lstrip(" \n\t\r")
        num_spaces = len(begun) + len(token) - len(body)
        is_prefix = num_spaces <= MAX_SPACES and opener.startswith(body)
        is_opened = num_spaces <= MAX_SPACES and body.startswith(opener)
        assert (token_id in allowed_ids(completing)) == is_opened
        is_closed = is_opened and "<b" in body[len(opener) :]
        assert (token_id in allowed_ids(legal)) == ((is_prefix or is_opened) and not is_closed)


def test_a_token_and_what_it_is_without_white_space() -> None:
    vocabulary = vocabulary_with([" a", "\n\na", " <<", "a b"])
    spaced = spaced_tokens(vocabulary)
    tokens = vocabulary.tokens
    found = {
        tokens[token_id]: (tokens[rest_id] if rest_id >= 0 else b"", num_spaces)
        for token_id, rest_id, num_spaces in zip(
            spaced.ids.tolist(), spaced.rest_ids.tolist(), spaced.num_spaces.tolist(), strict=True
        )
    }
    singles = dict.fromkeys((b" ", b"\n", b"\t", b"\r"), (b"", 1))
    assert found == {**singles, b" a": (b"a", 1), b"\n\na": (b"a", 2)}
