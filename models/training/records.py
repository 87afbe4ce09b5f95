"""Sentences to short JSON records: people, things for sale, events."""

import json
from collections.abc import Callable
from random import Random

from models.training.document import Example, Split, answer
from models.training.holdout import belongs
from models.training.names import draw_someone, draw_town
from models.training.words import COLOURS, EVENTS, FOODS, ITEMS, JOBS, PETS, join_words

Value = str | int | bool | list[str]
Clauses = dict[str, tuple[Value, str]]
"""Key to value and the clause that says it, after the subject."""


def _person(rng: Random, split: Split) -> tuple[str, Value, Clauses]:
    who, town = draw_someone(rng, split), draw_town(rng, split)
    job, pet, age = rng.choice(JOBS), rng.choice(PETS), rng.randint(5, 95)
    married = rng.random() < 0.5
    likes = rng.sample(FOODS, rng.randint(1, 3))
    facts: Clauses = {
        "age": (age, rng.choice((f"is {age} years old", f"is {age}"))),
        "job": (job, rng.choice((f"is a {job}", f"works as a {job}"))),
        "town": (town, rng.choice((f"lives in {town}", f"is from {town}"))),
        "married": (married, "is married" if married else "is not married"),
        "pet": (pet, rng.choice((f"has a {pet}", f"keeps a {pet}"))),
        "likes": (list(likes), f"likes {join_words(likes)}"),
    }
    return "name", who.full, facts


def _item(rng: Random, split: Split) -> tuple[str, Value, Clauses]:
    item, colour, price = rng.choice(ITEMS), rng.choice(COLOURS), rng.randint(1, 99)
    maker, shop = draw_someone(rng, split), draw_town(rng, split)
    facts: Clauses = {
        "colour": (colour, f"is {colour}"),
        "price": (price, f"costs {price} coins"),
        "maker": (maker.full, f"was made by {maker.full}"),
        "shop": (shop, f"is sold in {shop}"),
    }
    return "item", item, facts


def _event(rng: Random, split: Split) -> tuple[str, Value, Clauses]:
    event, town, host = rng.choice(EVENTS), draw_town(rng, split), draw_someone(rng, split)
    year, guests = rng.randint(1950, 2040), rng.randint(2, 400)
    facts: Clauses = {
        "town": (town, rng.choice((f"is in {town}", f"takes place in {town}"))),
        "year": (year, rng.choice((f"is in {year}", f"takes place in {year}"))),
        "host": (host.full, f"is led by {host.full}"),
        "guests": (guests, f"has {guests} guests"),
    }
    return "event", event, facts


_KINDS: tuple[Callable[[Random, Split], tuple[str, Value, Clauses]], ...] = (_person, _item, _event)
_KIND_WEIGHTS = (6, 2, 2)


def _sentences(rng: Random, subject: str, clauses: list[str]) -> str:
    """The clauses in one sentence, or each in its own."""
    if rng.random() < 0.6:
        return f"{subject} {join_words(clauses)}."
    return " ".join(f"{subject} {clause}." for clause in clauses)


def draw(rng: Random, split: Split) -> Example:
    """A record; held out are whole records, and the names of people and towns."""
    while True:
        example = _draw_any(rng, split)
        if belongs(split, "record", example.target):
            return example


def _draw_any(rng: Random, split: Split) -> Example:
    [kind] = rng.choices(_KINDS, _KIND_WEIGHTS)
    head, subject, facts = kind(rng, split)
    told = rng.sample(sorted(facts), rng.randint(1, min(4, len(facts))))
    name = str(subject) if head == "name" else f"The {subject}"
    text = _sentences(rng, name, [facts[key][1] for key in told])
    keys = [head, *told]
    if rng.random() < 0.4:
        keys = [head, *sorted(rng.sample(told, rng.randint(1, len(told))), key=told.index)]
        order = f"Extract {join_words(keys)} as JSON: "
    else:
        order = rng.choice(("Extract as JSON: ", "Write as JSON: ", "Turn into JSON: "))
    record = {key: subject if key == head else facts[key][0] for key in keys}
    line = json.dumps(record)
    return Example(
        "json", order + text, answer(line), line, raw_prompt=f"{order}{text}\n", raw_lead=""
    )


def is_right(example: Example, text: str) -> bool:
    try:
        return bool(json.loads(text) == json.loads(example.target))
    except ValueError:
        return False
