"""Tokens as bytes, by llguidance's reading and by the router's."""

from pathlib import Path

import pytest

from constraints.errors import NotEnforced
from constraints.vocabulary import Vocabulary
from tests.byte_tokenizer import EOS_ID, NUM_SPECIAL, save_byte_tokenizer
from tests.constraints.walks import ROOT
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
