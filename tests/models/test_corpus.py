"""The corpus of the bundled model: right, repeatable, and kept apart from the test."""

import json
import re
from collections.abc import Callable, Sequence
from datetime import date, timedelta
from itertools import pairwise
from random import Random

import numpy as np
import pytest

from models.training import (
    arithmetic,
    chat,
    corpus,
    dates,
    facts,
    names,
    odd_one_out,
    records,
    search,
    stories,
)
from models.training.document import Document, Example, Part, Split, text_of

Draw = Callable[[Random, Split], Example]
DRAWS: dict[str, Draw] = {
    "arithmetic": arithmetic.draw,
    "odd": odd_one_out.draw,
    "dates": dates.draw,
    "lookup": dates.draw_lookup,
    "records": records.draw,
    "search": search.draw,
    "facts": facts.draw,
    "unknown": chat.draw_unknown,
}
NUM_DRAWN = 100


def drawn(draw: Draw, split: Split, count: int = NUM_DRAWN) -> list[Example]:
    rng = Random(f"tests/{split}")
    return [draw(rng, split) for _ in range(count)]


def byte_encoder(texts: Sequence[str]) -> list[list[int]]:
    return [list(text.encode()) for text in texts]


@pytest.mark.parametrize("kind", corpus.KINDS, ids=lambda kind: kind.name)
def test_a_kind_draws_the_same_documents_from_the_same_seed(kind: corpus.Kind) -> None:
    one = Random(7)
    other = Random(7)

    assert [kind.draw(one) for _ in range(30)] == [kind.draw(other) for _ in range(30)]


@pytest.mark.parametrize("kind", corpus.KINDS, ids=lambda kind: kind.name)
def test_every_document_ends_with_the_end_mark_that_is_learnt(kind: corpus.Kind) -> None:
    rng = Random(3)
    for _ in range(50):
        assert kind.draw(rng)[-1] == Part("<|end|>", 1.0)


@pytest.mark.parametrize("name", DRAWS)
def test_no_test_question_is_ever_a_training_question(name: str) -> None:
    asked = {example.question for example in drawn(DRAWS[name], "train", 1500)}

    tested = {example.question for example in drawn(DRAWS[name], "test")}

    assert not asked & tested - NOTHING_TO_HOLD_OUT


# Questions without a word that could be held out.
NOTHING_TO_HOLD_OUT = {
    "What is the weather today?",
    "What is in the news?",
    "What time is it?",
    "What is the meaning of life?",
}


def test_the_name_pools_of_the_splits_are_disjoint_and_large() -> None:
    rng = Random(1)
    pools = {
        split: {
            name
            for _ in range(3000)
            for someone in [names.draw_someone(rng, split)]
            for name in (someone.first, someone.surname, names.draw_town(rng, split))
        }
        for split in ("train", "test")
    }

    assert not pools["train"] & pools["test"]
    assert len(pools["train"]) > 5000
    assert len(pools["test"]) > 500


def test_no_name_of_the_test_pool_occurs_in_the_training_corpus() -> None:
    rng = Random(5)
    text = " ".join(text_of(kind.draw(rng)) for kind in corpus.KINDS for _ in range(150))
    words = set(re.findall(r"[A-Z][a-z]+", text)) - {word.strip() for word in chat.known_words()}
    people = [names.draw_someone(rng, "test") for _ in range(1500)]
    pool = {p.first for p in people} | {p.surname for p in people}
    pool |= {names.draw_town(rng, "test") for _ in range(1000)}

    assert not words & pool


@pytest.mark.parametrize("split", ["train", "test"])
def test_every_calculator_mark_and_every_answer_is_right(split: Split) -> None:
    for example in drawn(arithmetic.draw, split):
        marks = re.findall(r"([^ ]+)=<<(\d+)([-+*/])(\d+)=(\d+)>>(\d+)", example.answer_text)
        assert marks
        for term, left, operator, right, result, shown in marks:
            a = int(left)
            b = int(right)
            value = {"+": a + b, "-": a - b, "*": a * b, "/": a / b if b else None}[operator]
            assert value == int(result)
            assert (term, shown) == (f"{left}{operator}{right}", result)
        assert example.target == marks[-1][4]
        assert arithmetic.is_right(example, example.answer_text)


def test_the_odd_word_is_the_one_of_another_category() -> None:
    kind_of = {w: kind for kind, words in odd_one_out.CATEGORIES.items() for w in words}
    for example in drawn(odd_one_out.draw, "test"):
        words = re.split(r": ", example.question)[1].strip(".?").split(", ")
        kinds = [kind_of[word] for word in words]
        [odd] = [word for word in words if kinds.count(kind_of[word]) == 1]
        assert example.target == odd
        assert odd_one_out.is_right(example, example.answer_text)


def test_no_word_is_of_two_categories() -> None:
    words = [word for group in odd_one_out.CATEGORIES.values() for word in group]

    assert len(words) == len(set(words))


STEPS = {
    "Tomorrow": timedelta(1),
    "Yesterday": timedelta(-1),
    "In a week": timedelta(7),
    "A week ago": timedelta(-7),
    "In 10 days": timedelta(10),
    "10 days ago": timedelta(-10),
}


def _parse(shown: str) -> date:
    month, day, year = map(int, shown.split("/"))
    return date(year, month, day)


def _is_shifted(answer: str, start: date, end: date) -> bool:
    for words, step in STEPS.items():
        if f" {words} " in answer:
            return end - start == step
    months = (end.year - start.year) * 12 + end.month - start.month
    wanted = {"In a month": 1, "A month ago": -1, "In a year": 12, "A year ago": -12}
    for words, count in wanted.items():
        if f" {words} " in answer:
            return months == count and (end.day == start.day or (end + timedelta(1)).day == 1)
    return False


def test_dates_are_shifted_as_the_calendar_says() -> None:
    for example in drawn(dates.draw_direct, "test"):
        shown = [_parse(text) for text in re.findall(r"\d\d/\d\d/\d{4}", example.answer_text)]
        assert shown[-1] == _parse(example.target)
        if len(shown) == 3:
            assert _is_shifted(example.answer_text, shown[0], shown[1]), example.answer_text


def test_a_drill_shifts_one_day_as_the_calendar_says() -> None:
    rng = Random(8)
    for _ in range(100):
        text = text_of(dates.draw_drill(rng, "train"))
        _, _, around = text.rpartition("Today is ")
        first, *sentences = around.removesuffix("<|end|>").split(". ")
        assert sentences
        for sentence in sentences:
            end = _parse(sentence.rstrip(".")[-10:])
            assert _is_shifted(f" {sentence}", _parse(first), end), text


def test_the_walk_says_yes_to_the_right_option_alone() -> None:
    for example in drawn(dates.draw_choice, "test"):
        options = dict(re.findall(r"^(\([A-F]\)) (.*)$", example.question, re.M))
        before, _, _ = example.answer_text.partition(" (A)")
        right = re.findall(r"\d\d/\d\d/\d{4}", before)[-1]
        verdicts = re.findall(r"(\([A-F]\)) (\S+) (yes|no)\.", example.answer_text)
        assert options[example.target] == right
        assert [letter for letter, *_ in verdicts] == list(options)[: len(verdicts)]
        for letter, shown, verdict in verdicts:
            assert options[letter].startswith(shown)
            assert right.startswith(shown) == (verdict == "yes")
            assert right.startswith(shown[:-1])
        assert [verdict for *_, verdict in verdicts] == ["no"] * (len(verdicts) - 1) + ["yes"]


def test_a_record_says_only_what_the_sentence_says() -> None:
    for example in drawn(records.draw, "test"):
        record = json.loads(example.target)
        told = example.question.partition("JSON: ")[2]
        for key, value in record.items():
            if isinstance(value, bool):
                assert ("is not married" in told) != value
            else:
                for said in value if isinstance(value, list) else [value]:
                    assert str(said) in told, (key, said)
        assert records.is_right(example, example.answer_text)
        assert not records.is_right(example, example.answer_text[:-1])


def test_a_search_transcript_shows_what_its_pages_hold() -> None:
    for example in drawn(search.draw, "test"):
        lines = example.answer_text.splitlines()
        searched = 0
        for act, obs in pairwise(lines):
            if found := re.fullmatch(r"Act (\d+): Search '(.*)'", act):
                searched += 1
                assert obs == f"Obs {found[1]}: {search.look_up(example.pages, found[2])}"
        assert searched
        shown = " ".join(line for line in lines if line.startswith("Obs"))
        assert example.target == "unknown" or example.target in shown
        assert search.is_right(example, example.answer_text)


def test_the_world_agrees_with_itself() -> None:
    statements = facts.all_statements()

    assert facts.mayors_live_at_home()
    assert len(statements) == len(set(statements))
    assert all(e.target in e.answer_text for e in drawn(facts.draw, "train"))


def test_a_story_keeps_its_hero_and_leaves_no_slot_open() -> None:
    rng = Random(2)
    for _ in range(200):
        text = stories.tell(rng, "train", "fox")
        assert "fox called" in text
        assert not re.search(r"[{}]", text)
        assert not re.search(r'(^|[.!?] |: )"[a-z]', text)


def test_packing_keeps_every_token_once_and_pads_little() -> None:
    rng = Random(4)
    chunk = corpus.draw_chunk(rng, byte_encoder, 40_000)
    rows = corpus.pack(rng, chunk, corpus.LONG_LEN, pad_id=256)

    kept = rows.ids != 256
    assert kept.sum() == sum(len(document.ids) for document in chunk)
    assert (
        np.bincount(rows.ids[kept]).tolist()
        == np.bincount([token for document in chunk for token in document.ids]).tolist()
    )
    assert not rows.weights[~kept].any()
    assert kept.mean() > 0.9


def test_a_document_is_never_torn_apart_by_packing() -> None:
    documents: list[Document] = [(Part("a" * n), Part("|")) for n in (5, 9, 3, 7, 2)]
    rows = corpus.pack(Random(0), corpus.encode(documents, byte_encoder), 12, pad_id=0)

    lines = [bytes(int(i) for i in row if i).decode() for row in rows.ids]
    assert sorted(len(piece) for line in lines for piece in line.split("|")[:-1]) == [2, 3, 5, 7, 9]


def test_a_chunk_follows_the_shares_by_tokens() -> None:
    chunk = corpus.draw_chunk(Random(6), byte_encoder, 300_000)
    total = sum(kind.share for kind in corpus.KINDS)
    searches = sum(len(d.ids) for d in chunk if b"Tho 1" in bytes(d.ids))
    wanted = next(kind.share for kind in corpus.KINDS if kind.name == "search") / total

    assert searches / sum(len(d.ids) for d in chunk) == pytest.approx(wanted, abs=0.03)


def test_a_weight_outside_zero_and_one_is_refused() -> None:
    with pytest.raises(ValueError, match=r"weight 1\.5 of 'x' is not between 0 and 1"):
        Part("x", 1.5)
