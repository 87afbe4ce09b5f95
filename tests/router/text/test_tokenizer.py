"""Text to ids and back, as transformers does it."""

import asyncio
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, cast

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, models
from tokenizers import Tokenizer as Backend
from transformers import AutoTokenizer

from router.request.errors import InvalidRequest, StartupFailed
from router.text.tokenizer import Tokenizer, TokenSpan, check_fits, continuation_ids
from tests.byte_tokenizer import save_byte_tokenizer
from tests.router.text import small_tokenizers
from tests.router.text.small_tokenizers import KINDS, load

TEXTS = (
    *small_tokenizers.CORPUS,
    "",
    " ",
    "  two  spaces ",
    "a<|end|>b</s> c",
    "the <note> and a b spaced",
    "\x00\u0301\U0010ffff",
)


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    return {
        kind: small_tokenizers.save(build(), tmp_path_factory.mktemp(kind))
        for kind, build in small_tokenizers.KINDS.items()
    }


@pytest.fixture(scope="module")
def tokenizer(folders: dict[str, Path]) -> Iterator[Tokenizer]:
    tokenizer = Tokenizer.load(folders["byte_level"])
    yield tokenizer
    tokenizer.close()


# --- encoding and decoding


@pytest.mark.parametrize("add_special_tokens", [True, False])
@pytest.mark.parametrize("kind", small_tokenizers.KINDS)
def test_ids_and_texts_are_those_of_transformers(
    folders: dict[str, Path], kind: str, add_special_tokens: bool
) -> None:
    ours = Tokenizer.load(folders[kind])
    theirs = AutoTokenizer.from_pretrained(folders[kind])
    for text in TEXTS:
        token_ids = ours.encode(text, add_special_tokens=add_special_tokens)
        assert token_ids == theirs.encode(text, add_special_tokens=add_special_tokens)
        for skip in (True, False):
            assert ours.decode(token_ids, skip_special_tokens=skip) == theirs.decode(
                token_ids, skip_special_tokens=skip, clean_up_tokenization_spaces=False
            )


def test_tokens_that_only_the_config_names_are_added_as_transformers_adds_them(
    tmp_path: Path,
) -> None:
    config: dict[str, Any] = {
        "pad_token": "<pad>",
        "additional_special_tokens": ["<|user|>", "fox"],
        "added_tokens_decoder": {
            "700": {"content": "<late>", "special": False},
            "699": {"content": "<early>", "special": True},
        },
    }
    ours = load(tmp_path, **config)
    theirs = AutoTokenizer.from_pretrained(tmp_path)
    text = "the fox<pad> <|user|><early><late></s>"
    assert ours.encode(text) == theirs.encode(text)
    assert ours.decode(ours.encode(text)) == theirs.decode(ours.encode(text), True) == "the  <late>"
    assert ours.vocab_size == len(theirs)


@given(text=st.text(max_size=40))
@settings(deadline=None)
def test_byte_level_text_survives_encoding(tokenizer: Tokenizer, text: str) -> None:
    plain = text.translate(dict.fromkeys(map(ord, "éâĠ")))  # odd added tokens begin with these
    assert tokenizer.decode(tokenizer.encode(plain), skip_special_tokens=False) == "<s>" + plain


def test_special_tokens_are_added_on_demand(tokenizer: Tokenizer) -> None:
    with_special = tokenizer.encode("the fox")
    without = tokenizer.encode("the fox", add_special_tokens=False)
    assert with_special[1:] == without
    assert tokenizer.is_special(with_special[0])
    assert not tokenizer.is_special(without[0])


def test_special_tokens_that_are_normalized_are_left_out_all_the_same(tmp_path: Path) -> None:
    backend = small_tokenizers.byte_fallback()
    backend.add_special_tokens([AddedToken("<odd>", normalized=True)])
    tokenizer = load(tmp_path, backend)
    token_id = backend.get_vocab()["<odd>"]
    assert tokenizer.decode([token_id, *tokenizer.encode("the")]) == "the"


def test_ids_without_a_token_add_nothing(tokenizer: Tokenizer) -> None:
    token_ids = tokenizer.encode("fox")
    assert tokenizer.decode([*token_ids, 10_000, 4_000_000_000]) == "fox"
    assert tokenizer.token_text(10_000) == ""


def test_settings_that_would_change_a_prompt_are_switched_off(tmp_path: Path) -> None:
    backend = small_tokenizers.byte_level()
    backend.enable_truncation(4)
    backend.enable_padding(length=64)
    tokenizer = load(tmp_path, backend)
    assert tokenizer.decode(tokenizer.encode("a" * 30, add_special_tokens=False)) == "a" * 30
    assert len(tokenizer.encode("a")) == 2


@pytest.mark.parametrize("text", ["a\ud800", "\udfff", "🙂\udc80b" * 3000])
async def test_a_lone_surrogate_is_refused_by_every_way_in(tokenizer: Tokenizer, text: str) -> None:
    with pytest.raises(InvalidRequest, match=r"`inputs` must be valid Unicode.*U\+D") as refused:
        tokenizer.encode(text)
    assert refused.value.field == "inputs"
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        await tokenizer.encode_async(text)
    with pytest.raises(InvalidRequest, match="lone surrogate"):
        await tokenizer.spans(text)


def test_a_word_that_the_vocabulary_cannot_express_is_refused(tmp_path: Path) -> None:
    backend = Backend(models.WordLevel({"yes": 0}, unk_token="<unk>"))
    tokenizer = load(tmp_path, backend, bos_token=None, eos_token=None)
    assert tokenizer.encode("yes") == [0]
    with pytest.raises(InvalidRequest, match=r"`inputs` cannot be encoded: .*UNK"):
        tokenizer.encode("no")


@pytest.mark.parametrize("length", [10, 4001, 60_000])
async def test_a_worker_encodes_and_decodes_as_the_loop_does(
    tokenizer: Tokenizer, length: int
) -> None:
    text = ("The quick brown 日本語 fox. " * length)[:length]
    token_ids = tokenizer.encode(text)
    assert await tokenizer.encode_async(text) == token_ids
    assert await tokenizer.decode_async(token_ids) == text


async def test_a_long_text_does_not_hold_up_the_loop(tokenizer: Tokenizer) -> None:
    text = "The quick brown fox's lazy dog. " * 30_000
    # The time of this process alone: others may stop it at any moment.
    begin_s = time.process_time()
    encoding = asyncio.ensure_future(tokenizer.encode_async(text))
    longest_s = 0.0
    last_s = begin_s
    while not encoding.done():
        await asyncio.sleep(0.001)
        longest_s = max(longest_s, time.process_time() - last_s)
        last_s = time.process_time()
    # One call on the loop would be one pause as long as the whole.
    assert longest_s < (last_s - begin_s) / 2


# --- spans


@given(text=st.text(max_size=30))
@settings(deadline=None)
def test_spans_are_bytes_of_the_input(tokenizer: Tokenizer, text: str) -> None:
    spans = asyncio.run(tokenizer.spans(text))
    assert [span.token_id for span in spans] == tokenizer.encode(text)
    for span in spans:
        assert text.encode()[span.start : span.stop].decode() == span.text


async def test_spans_of_a_word_an_accent_and_an_emoji(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, small_tokenizers.byte_fallback_unstripped())
    spans = await tokenizer.spans("the é🙂")
    first_byte = tokenizer.encode("\x00")[-1]
    emoji = [TokenSpan(first_byte + byte, "🙂", 6, 10) for byte in "🙂".encode()]
    assert [(span.text, span.start, span.stop) for span in spans[:6]] == [
        ("", 0, 0), ("t", 0, 1), ("he", 1, 3), (" ", 3, 4), ("é", 4, 6), ("🙂", 6, 10),
    ]  # fmt: skip
    assert spans[5:] == emoji


# --- tokens by themselves


def test_a_token_by_itself_reads_as_it_does_behind_others(folders: dict[str, Path]) -> None:
    tokenizer = Tokenizer.load(folders["byte_fallback"])
    token_ids = tokenizer.encode("the \x07")
    assert [tokenizer.token_text(token_id) for token_id in token_ids] == [
        "<s>",
        " the",
        " ",
        "\x07",
    ]
    half = tokenizer.encode("\xff")[-1]
    assert tokenizer.token_text(half) == "\ufffd"
    windowed = Tokenizer.load(folders["suffixed"])
    assert windowed.token_text(windowed.encode("x")[-1]) == "x"


LOSSLESS = ("byte_level", "byte_fallback", "byte_fallback_unstripped", "metaspace")
CONTINUATIONS = ("the", " the", "  the quick", "quick brown", "3 + 4", "", " ", "over 3", "naïve")
WORDS = "the quick brown fox jumps over the lazy dog. "


async def is_refused(tokenizer: Tokenizer, text: str, max_len: int) -> bool:
    try:
        await check_fits(tokenizer, text, max_len, "text")
    except InvalidRequest:
        return True
    return False


@pytest.mark.parametrize("kind", KINDS)
async def test_a_text_that_fits_is_never_refused(kind: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())
    # So long that its beginning is counted.
    text = WORDS * 4000
    num_tokens = len(tokenizer.encode(text, add_special_tokens=False))

    assert not await is_refused(tokenizer, text, num_tokens)
    assert await is_refused(tokenizer, text, 1)


@pytest.mark.parametrize("kind", ["byte_level", "byte_fallback", "metaspace"])
async def test_a_text_that_is_far_too_long_is_refused(kind: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())

    with pytest.raises(InvalidRequest, match=r"at most 100 tokens.*in its first 16384 of 4500000"):
        await check_fits(tokenizer, WORDS * 100_000, 100, "text")


async def test_a_text_that_may_be_a_little_too_long_passes(tmp_path: Path) -> None:
    tokenizer = load(tmp_path, KINDS["byte_level"]())
    num_tokens = len(tokenizer.encode(WORDS * 800, add_special_tokens=False))

    assert not await is_refused(tokenizer, WORDS * 800, num_tokens - 1)


@pytest.mark.parametrize("kind", LOSSLESS)
@pytest.mark.parametrize("text", CONTINUATIONS)
async def test_the_tokens_are_the_text_and_nothing_else(
    kind: str, text: str, tmp_path: Path
) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())
    ids = await continuation_ids(tokenizer, text)

    decoded = b"".join(tokenizer.token_bytes(token_id) for token_id in ids).decode()
    assert decoded == text
    assert not any(tokenizer.is_special(token_id) for token_id in ids)


@pytest.mark.parametrize("kind", KINDS)
async def test_every_tokenizer_has_tokens_for_a_word(kind: str, tmp_path: Path) -> None:
    tokenizer = load(tmp_path, KINDS[kind]())
    assert await continuation_ids(tokenizer, "quick")


async def test_half_a_character_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest):
        await continuation_ids(load(tmp_path), "\ud800")


class Panic(BaseException):
    """As the library's panics are: no Exception."""


class WithoutThreads:
    """A backend whose thread pool cannot be made."""

    def __init__(self, backend: Any) -> None:
        self._backend = backend

    def __getattr__(self, name: str) -> Any:
        return getattr(self._backend, name)

    def encode_batch_fast(self, *arguments: Any, **options: Any) -> Any:
        raise Panic("the global thread pool has not been initialized")


def test_a_tokenizer_whose_threads_cannot_start_is_found_out_before_the_first_request(
    tmp_path: Path,
) -> None:
    tokenizer = Tokenizer.load(save_byte_tokenizer(tmp_path))
    tokenizer.try_out()
    tokenizer._backend = cast(Any, WithoutThreads(tokenizer._backend))
    with pytest.raises(StartupFailed, match=r"thread pool has not been initialized; .* pids\.max"):
        tokenizer.try_out()
    tokenizer.close()


def test_an_added_token_is_found_by_its_whole_text(tokenizer: Tokenizer) -> None:
    token_id = tokenizer.added_id("<|end|>")
    assert token_id is not None
    assert tokenizer.token_text(token_id) == "<|end|>"
    assert tokenizer.added_id("a b") is not None
    assert (tokenizer.added_id("<|end|>\n"), tokenizer.added_id("")) == (None, None)
