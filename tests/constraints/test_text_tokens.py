"""Added tokens that are text may be drawn as text, special ones not, whatever they look like."""

import json
from pathlib import Path

import numpy as np
import pytest

from constraints.compiler import Compiler
from constraints.guide import Guide
from constraints.spec import Budget, ConstraintSpec, Kind
from constraints.vocabulary import Vocabulary
from tests.byte_tokenizer import EOS_ID, VOCAB_SIZE, byte_ids, save_byte_tokenizer

CALL_ID, MARKER_ID, TURN_ID, PIPE_ID = range(VOCAB_SIZE, VOCAB_SIZE + 4)
ADDED = [
    (CALL_ID, "<tool_call>", False),
    (MARKER_ID, "[TOOL_CALLS]", True),
    (TURN_ID, "<turn>", True),
    (PIPE_ID, "<|turn|>", False),
]


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    path = save_byte_tokenizer(tmp_path_factory.mktemp("model")) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"] += [
        {"id": token_id, "content": content, "special": special, **shape}
        for token_id, content, special in ADDED
    ]
    path.write_text(json.dumps(tokenizer))
    return Vocabulary.load(path, VOCAB_SIZE + 4, [EOS_ID])


def legal(vocabulary: Vocabulary, grammar: str) -> set[int]:
    matcher = Compiler(vocabulary).compile(ConstraintSpec(Kind.LARK, grammar)).matcher()
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    matcher.fill_mask(row)
    return {i for i in range(len(vocabulary.tokens)) if row[i // 32] >> (i % 32) & 1}


def test_text_has_bytes_and_special_tokens_have_none(vocabulary: Vocabulary) -> None:
    assert vocabulary.tokens[CALL_ID] == b"<tool_call>"
    assert vocabulary.tokens[MARKER_ID] == b"[TOOL_CALLS]"
    assert vocabulary.tokens[TURN_ID] == vocabulary.tokens[PIPE_ID] == b""
    assert vocabulary.tokens[byte_ids("a")[0]] == b"a"


def test_a_token_of_text_is_legal_where_its_text_is(vocabulary: Vocabulary) -> None:
    assert legal(vocabulary, 'start: "<tool_call>"') == {CALL_ID, *byte_ids("<")}
    assert legal(vocabulary, 'start: "[TOOL_CALLS]"') == {MARKER_ID, *byte_ids("[")}
    assert legal(vocabulary, 'start: "<turn>" | "<|turn|>"') == set(byte_ids("<"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"<tool_call>\n", [CALL_ID, *byte_ids("\n")]),
        (b"a[TOOL_CALLS][", [*byte_ids("a"), MARKER_ID, *byte_ids("[")]),
        (b"<turn>", byte_ids("<turn>")),
        (b"</s>", byte_ids("</s>")),
    ],
)
def test_texts_are_spelled_as_the_model_knows_them(
    vocabulary: Vocabulary, text: bytes, expected: list[int]
) -> None:
    assert vocabulary.spell(text) == expected


def test_a_forced_call_begins_with_the_model_s_own_token(vocabulary: Vocabulary) -> None:
    spec = ConstraintSpec(Kind.LARK, 'start: "<tool_call>{" /[ab]/')
    language = Compiler(vocabulary).compile(spec)
    guide = Guide(language, vocabulary, Budget(max_len=20))

    assert guide.take_forced()[0] == CALL_ID


def test_a_tokenizer_without_such_tokens_is_left_alone(tmp_path: Path) -> None:
    path = save_byte_tokenizer(tmp_path) / "tokenizer.json"

    assert Vocabulary.load(path, VOCAB_SIZE, [EOS_ID]).speller is None
