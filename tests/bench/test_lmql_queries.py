"""What lmql is asked when it is measured."""

import os.path

from tokenizers import Tokenizer

from bench.lmql_queries import FewShot, few_shot, short
from launcher import BUNDLED_MODEL

ASKED = FewShot(examples_len=600)
TOKENIZER = Tokenizer.from_file(str(BUNDLED_MODEL / "tokenizer.json"))


def test_a_few_shot_round_asks_different_questions_behind_the_same_examples() -> None:
    programs = few_shot(8, TOKENIZER, "a round", ASKED)
    shared = os.path.commonprefix(programs)
    assert ASKED.examples_len <= len(TOKENIZER.encode(shared).ids) <= ASKED.examples_len + 150
    assert len(set(programs)) == 8
    assert shared.count("So the odd one is") >= 5


def test_no_two_rounds_share_their_examples() -> None:
    seeds = ("a round", "another one")
    (one,), (other,) = (few_shot(1, TOKENIZER, seed, ASKED) for seed in seeds)
    assert len(os.path.commonprefix([one, other])) < 100
    assert few_shot(1, TOKENIZER, "a round", ASKED) == [one]


def test_a_few_shot_query_may_answer_with_the_words_of_its_question_alone() -> None:
    (program,) = few_shot(1, TOKENIZER, "a round", ASKED)
    prompt, _, conditions = program.rpartition(" where ")
    question = prompt.rpartition("Q: ")[2].partition("\\n")[0].rstrip(".?")
    words = question.rpartition(": ")[2].split(", ")
    assert conditions.endswith(str([f" {word}" for word in words]).replace("'", '"'))


def test_a_reasoning_may_be_bounded_for_models_that_do_not_end_it() -> None:
    (program,) = few_shot(1, TOKENIZER, "a round", FewShot(reasoning_len=64))
    assert " and len(TOKENS(REASONING)) < 64 and ANSWER in " in program


def test_short_queries_have_one_hole_and_a_bound() -> None:
    first, *rest = short(9, 64)
    assert first == 'argmax "Once there was a fox[TEXT]" where len(TOKENS(TEXT)) < 64'
    assert len(set(rest)) == 8


def test_a_query_may_ask_for_a_distribution_by_any_decoder() -> None:
    asked = FewShot(decoder="beam(n=2)", distributes=True)
    (program,) = few_shot(1, TOKENIZER, "a round", asked)
    assert program.startswith('beam(n=2) "')
    assert program.rpartition(" distribution ")[2].startswith("ANSWER in [")
