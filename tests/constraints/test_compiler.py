"""One compilation for one spec, whoever asks, in a bounded memory; what is found can be sent on."""

import random
import threading

import numpy as np
import pytest

from constraints.bitmask import allowed_ids
from constraints.compiler import MAX_BYTES, MIB, Compiler
from constraints.engine import GrammarLanguage
from constraints.errors import Malformed, TooComplex
from constraints.matcher import ANY_LEN, Language
from constraints.spec import ConstraintSpec, Kind, Translation, Whitespace
from tests.constraints.cases import CASES, byte_vocabulary, demo_vocabulary

SCHEMA = ConstraintSpec(Kind.JSON_SCHEMA, '{"type": "integer"}')


def test_every_part_of_a_spec_tells_specs_apart() -> None:
    compiler = Compiler(byte_vocabulary())
    specs = [
        SCHEMA,
        ConstraintSpec(Kind.JSON_SCHEMA, SCHEMA.text, Whitespace.COMPACT),
        ConstraintSpec(Kind.JSON_SCHEMA, SCHEMA.text, lenient=True),
        ConstraintSpec(Kind.REGEX, "a"),
        ConstraintSpec(Kind.WHERE, 'X == "a"'),
    ]
    assert len({id(compiler.compile(spec)) for spec in specs}) == len(specs)


def test_a_refusal_is_remembered() -> None:
    compiler = Compiler(byte_vocabulary())
    spec = ConstraintSpec(Kind.REGEX, "(")
    for _ in range(2):
        with pytest.raises(Malformed, match="never closed"):
            compiler.compile(spec)
        assert compiler.is_cached(spec)


COUNTS = "((a{1,50}b?){1,50}c?){1,50}"


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        (Kind.REGEX, COUNTS),
        (Kind.JSON_SCHEMA, f'{{"properties": {{"a": {{"pattern": "^{COUNTS}$"}}}}}}'),
        (Kind.LARK, f"start: /{COUNTS}/"),
        (Kind.GBNF, 'root ::= (("a"{1,50} "b"?){1,50} "c"?){1,50}'),
    ],
)
def test_counts_that_multiply_are_refused_before_an_output_breaks(kind: Kind, text: str) -> None:
    with pytest.raises(TooComplex, match="counted repetitions are within others"):
        Compiler(demo_vocabulary()).compile(ConstraintSpec(kind, text))


def test_the_least_recently_used_is_forgotten() -> None:
    compiler = Compiler(byte_vocabulary(), max_bytes=MIB * 2 // 5)
    specs = [ConstraintSpec(Kind.REGEX, letter) for letter in "abc"]
    first = compiler.compile(specs[0])
    compiler.compile(specs[1])
    assert compiler.compile(specs[0]) is first
    compiler.compile(specs[2])
    assert compiler.is_cached(specs[0])
    assert not compiler.is_cached(specs[1])


def test_the_cache_stays_within_its_bytes_whatever_the_sizes() -> None:
    compiler = Compiler(byte_vocabulary(), max_bytes=2 * MIB)
    for number in range(40):
        words = ", ".join(f'"{number} {word}"' for word in range(10 * number))
        compiler.compile(ConstraintSpec(Kind.CHOICE, f'["a", "b"{", " * bool(words)}{words}]'))
        assert MIB / 10 < compiler.num_bytes <= 2 * MIB


def test_a_language_that_is_larger_than_the_cache_is_kept_until_the_next() -> None:
    compiler = Compiler(byte_vocabulary(), max_bytes=1)
    assert compiler.compile(SCHEMA) is compiler.compile(SCHEMA)
    compiler.compile(ConstraintSpec(Kind.REGEX, "a"))
    assert not compiler.is_cached(SCHEMA)


def test_threads_that_ask_at_once_share_one_compilation() -> None:
    compiler = Compiler(byte_vocabulary())
    spec = ConstraintSpec(Kind.CHOICE, str([f"word {n}" for n in range(3000)]).replace("'", '"'))
    found: list[object] = []
    threads = [
        threading.Thread(target=lambda: found.append(compiler.compile(spec))) for _ in "abcd"
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert len({id(each) for each in found}) == 1


@pytest.mark.parametrize("kind", list(Kind))
def test_a_text_beyond_its_limit_is_too_complex(kind: Kind) -> None:
    text = "x" * (MAX_BYTES[kind] + 1)
    with pytest.raises(TooComplex, match="bytes"):
        Compiler(byte_vocabulary()).compile(ConstraintSpec(kind, text))


def test_a_pattern_that_looks_around_is_told_when_it_is_its_size() -> None:
    compiler = Compiler(byte_vocabulary())
    compiler.compile(ConstraintSpec(Kind.REGEX, r"(?!.*\bcat\b).{0,20}"))
    with pytest.raises(TooComplex, match="too many: shorten its repetitions"):
        compiler.compile(ConstraintSpec(Kind.REGEX, r"(?!.*\bcat\b).{0,200}"))


NUM_STEPS = 12
TRANSLATED = [name for name, spec in CASES.items() if spec.kind is not Kind.WHERE]
SET = '{"type": "array", "items": {"type": "integer"}, "uniqueItems": true, "maxItems": 2}'
LENIENT = '{"type": "array", "items": {"type": "integer"}, "$dynamicRef": "#a", "maxItems": 2}'
MORE = {
    "set": ConstraintSpec(Kind.JSON_SCHEMA, SET),
    "lenient": ConstraintSpec(Kind.JSON_SCHEMA, LENIENT, lenient=True),
    "gbnf": ConstraintSpec(Kind.GBNF, 'root ::= "a" [0-9]+ | "b" root'),
    "runs on": ConstraintSpec(Kind.LARK, 'start: "a"+ "b"'),
    "where, beyond automata": ConstraintSpec(Kind.WHERE, 'regex(X, r"((a{1,30}b){1,30}c){1,30}")'),
}


def compiled(spec: ConstraintSpec, translation: Translation | None = None) -> Language:
    return Compiler(demo_vocabulary()).compile(spec, translation)


def masks(language: Language, seed: int) -> list[bytes]:
    """Along one text, whose tokens a generator of this seed chooses."""
    vocabulary, matcher, chooser = demo_vocabulary(), language.matcher(), random.Random(seed)
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    seen = []
    for _ in range(NUM_STEPS):
        matcher.fill_mask(row)
        seen.append(row.tobytes())
        legal = [each for each in allowed_ids(row).tolist() if each not in vocabulary.end_ids]
        if not legal:
            break
        matcher.advance(chooser.choice(legal))
    return seen


@pytest.mark.parametrize("name", [*TRANSLATED, *MORE])
def test_a_language_that_was_translated_elsewhere_has_the_same_masks(name: str) -> None:
    spec = {**CASES, **MORE}[name]
    first = compiled(spec)
    completion = first.matcher().shortest(ANY_LEN)
    translation = first.translation
    assert translation is not None
    second = compiled(spec, translation)
    assert isinstance(second, GrammarLanguage)
    assert second.translation == Translation(
        translation.grammar,
        translation.not_enforced,
        translation.hints,
        watch=translation.watch,
    )
    assert second.matcher().shortest(ANY_LEN) == completion == translation.completion
    assert second.translation == translation
    assert second.not_enforced == first.not_enforced
    assert masks(second, 1) == masks(first, 1)


def test_the_constraint_itself_is_not_read_again() -> None:
    spec = ConstraintSpec(Kind.REGEX, "(never closed")
    with pytest.raises(Malformed):
        compiled(spec)
    good = compiled(ConstraintSpec(Kind.REGEX, "[ab]{3}")).translation
    assert masks(compiled(spec, good), 1) == masks(
        compiled(ConstraintSpec(Kind.REGEX, "[ab]{3}")), 1
    )


@pytest.mark.parametrize("completion", [(), (5, 6, 7), (1 << 20,)])
def test_a_text_that_is_none_is_looked_for_again(completion: tuple[int, ...]) -> None:
    spec = ConstraintSpec(Kind.REGEX, "[ab]{3}")
    first = compiled(spec)
    found = first.matcher().shortest(ANY_LEN)
    assert isinstance(first, GrammarLanguage)
    wrong = Translation(first.grammar, completion=completion)
    assert compiled(spec, wrong).matcher().shortest(ANY_LEN) == found


def test_what_our_own_automata_follow_has_no_translation() -> None:
    assert compiled(ConstraintSpec(Kind.WHERE, "len(X) < 5")).translation is None


def test_what_our_automata_do_not_follow_may_be_a_pattern_alone() -> None:
    many = ConstraintSpec(Kind.WHERE, r'regex(X, r"[^\n]{1,2000}")')
    assert isinstance(compiled(many), GrammarLanguage)
