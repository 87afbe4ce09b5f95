"""Tokens as bytes, by llguidance's reading and by the router's."""

from pathlib import Path

import pytest

from constraints.errors import NotEnforced
from constraints.vocabulary import Vocabulary
from tests.byte_tokenizer import EOS_ID, NUM_SPECIAL, save_byte_tokenizer
from tests.constraints.walks import ROOT
from tests.constraints.where.vocabularies import vocabulary_of
from tests.router.text import small_tokenizers

DEMO = ROOT / "models" / "demo" / "tokenizer.json"


@pytest.mark.parametrize("name", ["byte_level", "byte_fallback", "byte_fallback_unstripped"])
def test_tokens_are_the_bytes_that_the_router_decodes(name: str, tmp_path: Path) -> None:
    router = small_tokenizers.load(tmp_path, getattr(small_tokenizers, name)())
    vocabulary = Vocabulary.load(tmp_path / "tokenizer.json", None, [0])
    assert len(vocabulary.tokens) == router.vocab_size
    differing = {
        router.token_bytes(token_id)
        for token_id, token in enumerate(vocabulary.tokens)
        if token != router.token_bytes(token_id) and not router.is_special(token_id) and token_id
    }
    # llguidance marks special tokens with this byte; no UTF-8 has it, so no text needs it.
    assert differing <= {b"\xff"}


@pytest.mark.parametrize("name", ["metaspace", "word_piece", "undecoded", "suffixed"])
def test_a_tokenizer_whose_bytes_are_not_known_is_refused(name: str, tmp_path: Path) -> None:
    small_tokenizers.load(tmp_path, getattr(small_tokenizers, name)())
    with pytest.raises(NotEnforced, match="no token bytes"):
        Vocabulary.load(tmp_path / "tokenizer.json", None, [0])


def test_a_file_that_is_not_there_is_refused(tmp_path: Path) -> None:
    with pytest.raises(NotEnforced):
        Vocabulary.load(tmp_path / "tokenizer.json", None, [0])


def test_end_and_special_tokens_have_no_bytes(tmp_path: Path) -> None:
    folder = save_byte_tokenizer(tmp_path)
    end = NUM_SPECIAL + ord("!")
    vocabulary = Vocabulary.load(folder / "tokenizer.json", None, [EOS_ID, end, EOS_ID])
    assert vocabulary.end_ids == (EOS_ID, end)
    assert vocabulary.tokens[end] == b""
    assert vocabulary.tokens[:NUM_SPECIAL] == (b"", b"")
    assert vocabulary.tokens[NUM_SPECIAL + ord("a")] == b"a"


def test_columns_beyond_the_tokenizer_stand_for_nothing() -> None:
    plain, wide = Vocabulary.load(DEMO, None, [0]), Vocabulary.load(DEMO, 4100, [0])
    assert len(plain.tokens) == 4096
    assert wide.tokens == (*plain.tokens, b"", b"", b"", b"")
    assert wide.num_words == 129


def test_the_fingerprint_is_of_tokens_and_ends() -> None:
    one, same, other = (Vocabulary.load(DEMO, None, ends) for ends in ([0], [0], [0, 5]))
    assert one.fingerprint == same.fingerprint != other.fingerprint


@pytest.mark.parametrize("text", [b"a<|user|>b", b"<|end|>", b"<|pad|><|pad|> x", b"<|<|user|>|>"])
def test_what_special_tokens_are_called_is_spelled_as_text(text: bytes) -> None:
    vocabulary = Vocabulary.load(DEMO, None, [0])
    spelled = [vocabulary.tokens[token_id] for token_id in vocabulary.spell(text)]
    beginning, rest = vocabulary.spell_beginning(text)
    assert b"" not in spelled
    assert b"".join(spelled) == text
    assert b"".join(vocabulary.tokens[token_id] for token_id in beginning) + rest == text


def test_other_texts_are_spelled_as_the_model_reads_them() -> None:
    vocabulary = Vocabulary.load(DEMO, None, [0])
    for text in (b"Once there was a cat.", "日本 café".encode(), b"<|users|>", b'{"a": [1, 2]}'):
        assert vocabulary.spell(text) == vocabulary.backend.tokenize_bytes(text)
        assert vocabulary.spell_beginning(text) == vocabulary.backend.tokenize_partial(text)


def test_a_special_token_of_one_letter_has_no_other_spelling(tmp_path: Path) -> None:
    end = NUM_SPECIAL + ord("!")
    path = save_byte_tokenizer(tmp_path) / "tokenizer.json"
    vocabulary = Vocabulary.load(path, None, [end])
    assert vocabulary.spell(b"a!") == [NUM_SPECIAL + ord("a"), end]


def test_tokens_that_leave_the_text_are_cut_off() -> None:
    vocabulary = vocabulary_of([b"a", b"ab", b"c", b""], [3])
    assert vocabulary.beginning(b"abc", [1, 2]) == (1, 2)
    assert vocabulary.beginning(b"abc", [0, 2]) == (0,)
    assert vocabulary.beginning(b"abc", [1, 3, 2]) == (1,)
    assert vocabulary.beginning(b"abcx", [1, 2, 0]) == (1, 2)
