"""Added tokens that are text may be drawn as text, special ones not, whatever they look like."""

import json
from pathlib import Path

import numpy as np
import pytest

from constraints.compiler import Compiler
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from constraints.vocabulary import Vocabulary
from tests.byte_tokenizer import EOS_ID, NUM_SPECIAL, VOCAB_SIZE, byte_ids, save_byte_tokenizer

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
    output_state = OutputConstraintState(language, vocabulary, Budget(max_len=20))

    assert output_state.take_forced()[0] == CALL_ID


def test_a_tokenizer_without_such_tokens_is_left_alone(tmp_path: Path) -> None:
    path = save_byte_tokenizer(tmp_path) / "tokenizer.json"

    assert Vocabulary.load(path, VOCAB_SIZE, [EOS_ID]).speller is None


def with_added(folder: Path, added: list[tuple[int, str, bool]], vocab_size: int) -> Vocabulary:
    """The bytes, and tokens that stand only among the added ones, as most files have them."""
    path = save_byte_tokenizer(folder) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    shape = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False}
    tokenizer["added_tokens"] += [
        {"id": token_id, "content": content, "special": special, **shape}
        for token_id, content, special in added
    ]
    path.write_text(json.dumps(tokenizer))
    return Vocabulary.load(path, vocab_size, [EOS_ID])


def test_tokens_keep_their_ids_when_some_of_them_become_text(tmp_path: Path) -> None:
    added = [
        (VOCAB_SIZE, "<|begin|>", True),
        (VOCAB_SIZE + 1, "<unused>", True),
        (VOCAB_SIZE + 2, "<call>", False),
        (VOCAB_SIZE + 3, "[INST]", True),
        (VOCAB_SIZE + 4, "<think>", False),
        (VOCAB_SIZE + 5, "<|end|>", True),
    ]
    vocabulary = with_added(tmp_path, added, VOCAB_SIZE + 8)

    assert vocabulary.tokens[VOCAB_SIZE:] == (b"", b"", b"<call>", b"", b"<think>", b"", b"", b"")
    assert vocabulary.spell(b"<think>[INST]<call>") == [
        *(VOCAB_SIZE + 4, *byte_ids("[INST]")),
        VOCAB_SIZE + 2,
    ]
    bytes_of_text = {NUM_SPECIAL + byte for byte in range(0x80)}
    assert legal(vocabulary, r"start: /[\x00-\x7f]+/") == {
        *(VOCAB_SIZE + 2, VOCAB_SIZE + 4),
        *bytes_of_text,
    }


def test_ids_far_beyond_the_vocabulary_are_kept(tmp_path: Path) -> None:
    special = [(VOCAB_SIZE + n, f"<|place {n}|>", True) for n in range(300)]
    call = VOCAB_SIZE + 300
    vocabulary = with_added(tmp_path, [*special, (call, "<call>", False)], VOCAB_SIZE + 310)

    assert vocabulary.tokens[VOCAB_SIZE:] == (*(300 * (b"",)), b"<call>", *(9 * (b"",)))
    assert vocabulary.spell(b"<call>a<|place 7|>") == [call, *byte_ids("a<|place 7|>")]


def test_ids_between_others_that_no_token_has_are_never_legal(tmp_path: Path) -> None:
    path = save_byte_tokenizer(tmp_path) / "tokenizer.json"
    tokenizer = json.loads(path.read_text())
    hole, last = VOCAB_SIZE, VOCAB_SIZE + 1
    tokenizer["model"]["vocab"] |= {"abc": last}
    path.write_text(json.dumps(tokenizer))
    vocabulary = Vocabulary.load(path, None, [EOS_ID])

    assert vocabulary.tokens[hole:] == (b"", b"abc")
    assert legal(vocabulary, "start: /(?s:.)+/") >= {last}
    assert hole not in legal(vocabulary, "start: /(?s:.)+/")


def test_what_the_files_beside_make_special_is_no_text(tmp_path: Path) -> None:
    listed = {"extra_special_tokens": ["[DOC]"], "mask_token": {"content": "[MASK]"}}
    decoder = {str(VOCAB_SIZE + 2): {"content": "[TURN]", "special": True}}
    vocabulary = with_added(
        tmp_path / "plain",
        [(VOCAB_SIZE + n, name, False) for n, name in enumerate(("[DOC]", "[MASK]", "[TURN]"))],
        VOCAB_SIZE + 3,
    )
    assert vocabulary.tokens[VOCAB_SIZE:] == (b"[DOC]", b"[MASK]", b"[TURN]")

    path = tmp_path / "plain" / "tokenizer_config.json"
    path.write_text(json.dumps({**listed, "added_tokens_decoder": decoder}))
    vocabulary = Vocabulary.load(path.with_name("tokenizer.json"), VOCAB_SIZE + 3, [EOS_ID])
    assert vocabulary.tokens[VOCAB_SIZE:] == (b"", b"", b"")
    assert legal(vocabulary, 'start: "[DOC]"') == set(byte_ids("["))
