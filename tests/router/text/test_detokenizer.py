"""Incremental text equals the text of all tokens at once, for every kind of tokenizer."""

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders
from tokenizers import Tokenizer as Backend
from tokenizers.decoders import Decoder

from router.text.detokenizer import Detokenizer
from router.text.tokenizer import Tokenizer
from tests.hypothesis_profiles import more_examples
from tests.router.text import small_tokenizers

BYTE_FALLBACK = ("byte_fallback", "byte_fallback_unstripped")
EXACT = tuple(kind for kind in small_tokenizers.KINDS if kind not in BYTE_FALLBACK)


@pytest.fixture(scope="module")
def loaded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, Tokenizer]]:
    """A tokenizer of each kind, by name."""
    tokenizers = {
        kind: Tokenizer.load(small_tokenizers.save(build(), tmp_path_factory.mktemp(kind)))
        for kind, build in small_tokenizers.KINDS.items()
    }
    windowed = small_tokenizers.byte_level()
    # It does nothing more, but is a decoder that no table can be made for.
    windowed.decoder = decoders.Sequence([decoders.ByteLevel(), decoders.Strip("x", 0, 0)])
    folder = small_tokenizers.save(windowed, tmp_path_factory.mktemp("windowed"))
    tokenizers["windowed_bytes"] = Tokenizer.load(folder)
    yield tokenizers
    for tokenizer in tokenizers.values():
        tokenizer.close()


def pieces_of(detokenizer: Detokenizer, token_ids: Sequence[int]) -> list[str]:
    return [*(detokenizer.push(token_id) for token_id in token_ids), detokenizer.flush()]


def library_text(kind: str, token_ids: Sequence[int], *, skip: bool) -> str:
    return str(small_tokenizers.KINDS[kind]().decode(token_ids, skip_special_tokens=skip))


# Any id, some of them beyond the vocabulary, as a padded model can draw them.
some_ids = st.lists(st.integers(0, 560), max_size=24)


@pytest.mark.parametrize("kind", small_tokenizers.KINDS)
@given(token_ids=some_ids, skip=st.booleans())
@more_examples(2)
def test_pushes_and_flush_give_what_decode_gives(
    loaded: dict[str, Tokenizer], kind: str, token_ids: list[int], skip: bool
) -> None:
    tokenizer = loaded[kind]
    text = "".join(pieces_of(Detokenizer(tokenizer, skip), token_ids))
    assert text == tokenizer.decode(token_ids, skip_special_tokens=skip)


@pytest.fixture(scope="module")
def backends() -> dict[str, Backend]:
    return {kind: build() for kind, build in small_tokenizers.KINDS.items()}


@pytest.mark.parametrize("kind", EXACT)
@given(token_ids=some_ids, skip=st.booleans())
@more_examples(2)
def test_pushes_and_flush_give_what_the_library_gives(
    loaded: dict[str, Tokenizer],
    backends: dict[str, Backend],
    kind: str,
    token_ids: list[int],
    skip: bool,
) -> None:
    text = "".join(pieces_of(Detokenizer(loaded[kind], skip), token_ids))
    assert text == backends[kind].decode(token_ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
@given(
    parts=st.lists(
        st.one_of(st.text(min_size=1, max_size=3), st.integers(0, 3), st.integers(260, 400)),
        max_size=12,
    ),
    skip=st.booleans(),
)
@more_examples(2)
def test_whole_characters_in_bytes_give_what_the_library_gives(
    loaded: dict[str, Tokenizer],
    backends: dict[str, Backend],
    kind: str,
    parts: list[str | int],
    skip: bool,
) -> None:
    first_byte = backends[kind].get_vocab()["<0x00>"]
    token_ids = [
        token_id
        for part in parts
        for token_id in (
            [part] if isinstance(part, int) else [first_byte + byte for byte in part.encode()]
        )
    ]
    text = "".join(pieces_of(Detokenizer(loaded[kind], skip), token_ids))
    assert text == backends[kind].decode(token_ids, skip_special_tokens=skip)


@pytest.mark.parametrize("kind", BYTE_FALLBACK)
def test_broken_bytes_lose_no_whole_character(loaded: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = loaded[kind]
    first_byte = tokenizer.encode("\x00", add_special_tokens=False)[-1]
    token_ids = [first_byte + byte for byte in "é".encode() + b"\xff" + "日".encode()[:2] + b"\n"]
    assert tokenizer.decode(token_ids) == "é\ufffd\ufffd\ufffd\n"
    assert pieces_of(Detokenizer(tokenizer), token_ids) == [
        "", "é", "\ufffd", "", "", "\ufffd\ufffd\n", "",
    ]  # fmt: skip


# Without the characters that the byte-level tokenizer has odd added tokens for.
plain_text = st.text(st.characters(codec="utf-8", exclude_characters="âéĠ日"), max_size=20)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback_unstripped", "windowed_bytes"])
@given(text=plain_text)
@more_examples(2)
def test_every_push_gives_whole_characters(
    loaded: dict[str, Tokenizer], kind: str, text: str
) -> None:
    tokenizer = loaded[kind]
    pushes = pieces_of(
        Detokenizer(tokenizer, False), tokenizer.encode(text, add_special_tokens=False)
    )
    for num_pushes in range(len(pushes)):
        assert text.startswith("".join(pushes[:num_pushes]))
    assert "".join(pushes) == text


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback"])
def test_an_emoji_appears_with_its_last_byte(loaded: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = loaded[kind]
    token_ids = tokenizer.encode("🦊", add_special_tokens=False)
    shown = [text for text in pieces_of(Detokenizer(tokenizer), token_ids) if text]
    assert len(token_ids) > 1
    assert shown == ["🦊"]


@pytest.mark.parametrize(
    ("kind", "tail"), [("byte_level", "\ufffd"), ("byte_fallback", "\ufffd" * 3)]
)
def test_half_a_character_at_the_end_is_flushed_as_decode_shows_it(
    loaded: dict[str, Tokenizer], kind: str, tail: str
) -> None:
    tokenizer = loaded[kind]
    token_ids = tokenizer.encode("ab🦊", add_special_tokens=False)[:-1]
    detokenizer = Detokenizer(tokenizer)
    shown = "".join(detokenizer.push(token_id) for token_id in token_ids)
    assert (shown, detokenizer.flush()) == ("ab", tail)
    assert tokenizer.decode(token_ids) == library_text(kind, token_ids, skip=True) == "ab" + tail


@pytest.mark.parametrize("kind", small_tokenizers.KINDS)
@given(prompt=st.sampled_from(["The fox", "not so", "Yes", ""]), token_ids=some_ids)
@more_examples(2)
def test_behind_a_prompt_the_text_goes_on(
    loaded: dict[str, Tokenizer], kind: str, prompt: str, token_ids: list[int]
) -> None:
    tokenizer = loaded[kind]
    prompt_ids = tokenizer.encode(prompt)
    text = "".join(pieces_of(Detokenizer(tokenizer, True, prompt_ids), token_ids))
    assert tokenizer.decode(prompt_ids) + text == tokenizer.decode(prompt_ids + token_ids)


@pytest.mark.parametrize("kind", ["byte_fallback", "metaspace"])
def test_a_leading_space_falls_off_at_the_beginning_of_a_text_alone(
    loaded: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = loaded[kind]
    token_ids = tokenizer.encode("the", add_special_tokens=False)
    prompt_ids = tokenizer.encode("not")
    assert "".join(pieces_of(Detokenizer(tokenizer), token_ids)) == "the"
    assert "".join(pieces_of(Detokenizer(tokenizer, True, prompt_ids), token_ids)) == " the"


def test_tables_are_made_wherever_tokens_stand_alone(loaded: dict[str, Tokenizer]) -> None:
    windowed = {kind for kind, tokenizer in loaded.items() if tokenizer.texts is None}
    assert windowed == {"suffixed", "windowed_bytes"}


BYTES = decoders.ByteLevel()
SPACES = decoders.Replace("▁", " ")
JOINED = decoders.Fuse()
FALLBACK = decoders.ByteFallback()


@pytest.mark.parametrize(
    ("kind", "steps", "has_table"),
    [
        pytest.param("byte_level", [BYTES, JOINED], True, id="joined bytes"),
        pytest.param("byte_level", [JOINED, BYTES], False, id="bytes of the joined text"),
        pytest.param("byte_level", [], True, id="nothing to do"),
        pytest.param("byte_fallback", [SPACES, FALLBACK], True, id="never joined"),
        pytest.param("byte_fallback", [SPACES], True, id="byte tokens left as they are"),
        pytest.param("byte_fallback", [FALLBACK, SPACES], False, id="replaced late"),
        pytest.param(
            "byte_fallback",
            [SPACES, FALLBACK, decoders.Strip(" ", 1, 0)],
            False,
            id="each stripped",
        ),
        pytest.param(
            "byte_fallback",
            [SPACES, FALLBACK, JOINED, decoders.Strip(" ", 3, 0)],
            True,
            id="several stripped",
        ),
        pytest.param(
            "byte_fallback",
            [SPACES, FALLBACK, JOINED, decoders.Strip(" ", 0, 1)],
            False,
            id="the end stripped",
        ),
        pytest.param(
            "byte_fallback",
            [decoders.Replace(Regex("[▁_]"), " "), FALLBACK, JOINED],
            False,
            id="a pattern replaced",
        ),
    ],
)
def test_decoders_that_look_alike_are_distinguished(
    tmp_path: Path, kind: str, steps: list[Decoder], has_table: bool
) -> None:
    backend = small_tokenizers.KINDS[kind]()
    backend.decoder = decoders.Sequence(steps)
    tokenizer = Tokenizer.load(small_tokenizers.save(backend, tmp_path))
    assert (tokenizer.texts is not None) is has_table

    @given(text=plain_text)
    def streamed_as_decoded(text: str) -> None:
        token_ids = tokenizer.encode("  " + text, add_special_tokens=False)
        assert "".join(pieces_of(Detokenizer(tokenizer), token_ids)) == backend.decode(token_ids)

    streamed_as_decoded()


def test_special_tokens_show_their_content_when_not_skipped(loaded: dict[str, Tokenizer]) -> None:
    tokenizer = loaded["byte_level"]
    token_ids = tokenizer.encode("a<|end|>b")
    assert "".join(pieces_of(Detokenizer(tokenizer, False), token_ids)) == "<s>a<|end|>b"
    assert "".join(pieces_of(Detokenizer(tokenizer, True), token_ids)) == "ab"


@pytest.mark.parametrize("kind", small_tokenizers.KINDS)
def test_some_special_tokens_may_be_shown_among_others_that_are_not(
    loaded: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = loaded[kind]
    end_id, hidden_id = (tokenizer.special_tokens[name] for name in ("<|end|>", "</s>"))
    ids = [*tokenizer.encode("fox", add_special_tokens=False), end_id, hidden_id]
    detokenizer = Detokenizer(tokenizer, shown_ids=frozenset({end_id}))
    shown = "".join(map(detokenizer.push, ids)) + detokenizer.flush()
    told = [each for each in ids if each == end_id or not tokenizer.is_special(each)]
    expected = tokenizer.decode(told, skip_special_tokens=False)
    assert shown.replace(" ", "") == expected.replace(" ", "")
    assert shown.strip().endswith("<|end|>")


@pytest.mark.parametrize("kind", ["byte_level", "windowed_bytes"])
def test_broken_bytes_are_shown_before_the_end(loaded: dict[str, Tokenizer], kind: str) -> None:
    tokenizer = loaded[kind]
    continuation = small_tokenizers.byte_level().get_vocab()["Ģ"]  # the byte 0x80
    detokenizer = Detokenizer(tokenizer)
    shown = "".join(detokenizer.push(continuation) for _ in range(40))
    assert set(shown) == {"\ufffd"}
    assert len(shown) >= 30
    assert shown + detokenizer.flush() == tokenizer.decode([continuation] * 40)


@pytest.mark.parametrize("kind", [*small_tokenizers.KINDS, "windowed_bytes"])
def test_time_grows_with_the_number_of_tokens_and_no_faster(
    loaded: dict[str, Tokenizer], kind: str
) -> None:
    tokenizer = loaded[kind]
    # The worst for a window: bytes that never become a character, and tokens without text.
    unit = [2, 3, 2, 3, 10, 200, 201, 255, 256, 255]

    def seconds(num_units: int) -> float:
        detokenizer = Detokenizer(tokenizer, True)
        begin_s = time.thread_time()
        for token_id in unit * num_units:
            detokenizer.push(token_id)
        return time.thread_time() - begin_s

    short_s = min(seconds(50) for _ in range(3))
    # 40 times the tokens; quadratic work would take 1600 times as long.
    assert seconds(2000) < 400 * short_s
