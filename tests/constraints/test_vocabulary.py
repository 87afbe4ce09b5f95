"""Tokens as bytes, by llguidance's reading and by the router's, and what is made of vocabularies.

Added tokens that are text may be drawn as text, special ones not, whatever they look like.
"""

import gc
import json
import weakref
from pathlib import Path

import pytest
from llguidance import LLTokenizer

from constraints.compiler import Compiler
from constraints.errors import NotEnforced
from constraints.guiding.alphabet import alphabet_of
from constraints.guiding.stops import table_of
from constraints.output_constraint import OutputConstraintState
from constraints.spec import Budget, ConstraintSpec, Kind
from constraints.token_trie import trie_of
from constraints.vocabulary import Vocabulary, kept_with_vocabulary, mark_of
from tests.byte_tokenizer import EOS_ID, NUM_SPECIAL, VOCAB_SIZE, byte_ids, save_byte_tokenizer
from tests.constraints.cases import ROOT, legal_of, vocabulary_of
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


def test_end_tokens_have_no_bytes_and_special_ones_those_of_no_text(tmp_path: Path) -> None:
    folder = save_byte_tokenizer(tmp_path)
    end = NUM_SPECIAL + ord("!")
    vocabulary = Vocabulary.load(folder / "tokenizer.json", None, [EOS_ID, end, EOS_ID])
    assert vocabulary.end_ids == (EOS_ID, end)
    assert vocabulary.tokens[end] == b""
    assert vocabulary.tokens[:NUM_SPECIAL] == (b"", mark_of(1))
    assert vocabulary.tokens[NUM_SPECIAL + ord("a")] == b"a"


def test_columns_beyond_the_tokenizer_stand_for_nothing() -> None:
    plain, wide = Vocabulary.load(DEMO, None, [0]), Vocabulary.load(DEMO, 4100, [0])
    assert len(plain.tokens) == 4096
    assert wide.tokens == (*plain.tokens, b"", b"", b"", b"")
    assert wide.num_words == 129


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


CALL_ID, MARKER_ID, TURN_ID, PIPE_ID = range(VOCAB_SIZE, VOCAB_SIZE + 4)
ADDED = [
    (CALL_ID, "<tool_call>", False),
    (MARKER_ID, "[TOOL_CALLS]", True),
    (TURN_ID, "<turn>", True),
    (PIPE_ID, "<|turn|>", False),
]


def with_added(
    folder: Path, added: list[tuple[int, str, bool]], vocab_size: int, base: Path | None = None
) -> Vocabulary:
    """The bytes, or a tokenizer of ours, and tokens that stand only among the added ones.

    Most files have them so. Each has its id and its text; the last says whether it is special.
    """
    base = base or save_byte_tokenizer(folder) / "tokenizer.json"
    tokenizer = json.loads(base.read_text())
    shape = dict.fromkeys(("single_word", "lstrip", "rstrip", "normalized"), False)
    tokenizer["added_tokens"] += [
        {"id": token_id, "content": content, "special": special, **shape}
        for token_id, content, special in added
    ]
    path = folder / "tokenizer.json"
    path.write_text(json.dumps(tokenizer))
    return Vocabulary.load(path, vocab_size, [EOS_ID if base == path else 0])


@pytest.fixture(scope="module")
def vocabulary(tmp_path_factory: pytest.TempPathFactory) -> Vocabulary:
    return with_added(tmp_path_factory.mktemp("model"), ADDED, VOCAB_SIZE + 4)


def legal(vocabulary: Vocabulary, grammar: str) -> set[int]:
    matcher = Compiler(vocabulary).compile(ConstraintSpec(Kind.LARK, grammar)).matcher()
    return set(legal_of(matcher, vocabulary))


def test_text_has_its_bytes_and_special_tokens_have_marks(vocabulary: Vocabulary) -> None:
    assert vocabulary.tokens[CALL_ID] == b"<tool_call>"
    for token_id in (MARKER_ID, TURN_ID, PIPE_ID):
        assert vocabulary.tokens[token_id] == mark_of(token_id)
    assert vocabulary.tokens[byte_ids("a")[0]] == b"a"


def test_a_token_of_text_is_legal_where_its_text_is(vocabulary: Vocabulary) -> None:
    assert legal(vocabulary, 'start: "<tool_call>"') == {CALL_ID, *byte_ids("<")}
    assert legal(vocabulary, 'start: "<turn>" | "<|turn|>"') == set(byte_ids("<"))


def test_a_special_token_is_legal_where_a_grammar_names_it_and_nowhere_else(
    vocabulary: Vocabulary,
) -> None:
    assert legal(vocabulary, f'start: <[{TURN_ID}]> "a"') == {TURN_ID}
    assert legal(vocabulary, f'start: "a" <[{TURN_ID}]>') == set(byte_ids("a"))
    grammar = f"start: FREE? <[{TURN_ID}]>\n" + r"FREE: /[^\U00100000-\U0010FFFF]+/"
    assert legal(vocabulary, grammar) & {TURN_ID, MARKER_ID, PIPE_ID} == {TURN_ID}


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (b"<tool_call>\n", [CALL_ID, *byte_ids("\n")]),
        (b"[TOOL_CALLS]", byte_ids("[TOOL_CALLS]")),
        (b"a" + mark_of(MARKER_ID) + b"[", [*byte_ids("a"), MARKER_ID, *byte_ids("[")]),
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

    begin, unused, inst, end = (mark_of(VOCAB_SIZE + place) for place in (0, 1, 3, 5))
    expected = (begin, unused, b"<call>", inst, b"<think>", end, b"", b"")
    assert vocabulary.tokens[VOCAB_SIZE:] == expected
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

    marks = [mark_of(token_id) for token_id, _, _ in special]
    assert vocabulary.tokens[VOCAB_SIZE:] == (*marks, b"<call>", *(9 * (b"",)))
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
    assert vocabulary.tokens[VOCAB_SIZE:] == tuple(mark_of(VOCAB_SIZE + n) for n in range(3))
    assert legal(vocabulary, 'start: "[DOC]"') == set(byte_ids("["))


def letters() -> Vocabulary:
    return Vocabulary((b"a", b"b", b"ab", b""), (3,), LLTokenizer("byte"))


def test_a_thing_is_made_once_of_each_vocabulary() -> None:
    made: list[tuple[Vocabulary, int]] = []

    @kept_with_vocabulary(2)
    def thing(vocabulary: Vocabulary, number: int) -> object:
        made.append((vocabulary, number))
        return object()

    one, other = letters(), letters()

    assert thing(one, 1) is thing(one, 1)
    assert thing(one, 1) is not thing(other, 1)
    assert made == [(one, 1), (other, 1)]
    thing(one, 2), thing(one, 3), thing(one, 1)
    assert len(made) == 5


def test_a_vocabulary_that_nobody_needs_goes_with_all_that_was_made_of_it() -> None:
    vocabulary = letters()
    trie = trie_of(vocabulary)
    table_of(vocabulary, ("ab",)), alphabet_of(vocabulary)
    assert trie_of(vocabulary) is trie
    gone = weakref.ref(trie)

    del vocabulary, trie
    gc.collect()

    assert gone() is None


def test_added_tokens_without_weights_are_no_tokens(tmp_path: Path) -> None:
    pads = [(4096, "[PAD]", True), (4097, "[MORE]", True)]
    plain, trimmed = Vocabulary.load(DEMO, 4096, [0]), with_added(tmp_path, pads, 4096, DEMO)
    assert trimmed.tokens == plain.tokens
    text = b'{"a": "[PAD] x <|user|>"}'
    assert trimmed.spell(text) == plain.spell(text)
    language = Compiler(trimmed).compile(ConstraintSpec(Kind.JSON_SCHEMA, '{"type": "object"}'))
    assert language.matcher().num_legal([*trimmed.spell(text), 0]) == len(trimmed.spell(text)) + 1
    partly = with_added(tmp_path, pads, 4097, DEMO)
    assert partly.tokens == (*plain.tokens, mark_of(4096))


def test_a_vocabulary_of_more_pieces_than_rows_is_refused() -> None:
    with pytest.raises(NotEnforced, match="no token bytes"):
        Vocabulary.load(DEMO, 4000, [0])
