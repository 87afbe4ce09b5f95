"""Questions about the invented world, asked in several wordings, answered by heart."""

from dataclasses import dataclass
from random import Random

from models.training.document import Document, Example, Split, answer, prose
from models.training.holdout import belongs
from models.training.world import ANIMALS, PEOPLE, TOWN_BY_NAME, TOWNS, Animal, Person, Town


@dataclass(frozen=True, slots=True)
class Relation:
    """One kind of fact: how it is asked, how it is answered, which value is the target."""

    name: str
    questions: tuple[str, ...]
    statement: str
    target: str


_TOWN = (
    Relation(
        "river",
        (
            "Which river flows through {t.name}?",
            "What is the river of {t.name}?",
            "On which river does {t.name} lie?",
            "What river is {t.name} on?",
            "Tell me the river of {t.name}.",
        ),
        "{t.name} lies on the river {t.river}.",
        "{t.river}",
    ),
    Relation(
        "sight",
        (
            "What is {t.name} known for?",
            "What can I see in {t.name}?",
            "What is the sight of {t.name}?",
            "Why do people visit {t.name}?",
            "What is there to see in {t.name}?",
        ),
        "{t.name} is known for the {t.sight}.",
        "{t.sight}",
    ),
    Relation(
        "dish",
        (
            "What do people eat in {t.name}?",
            "What is the dish of {t.name}?",
            "Which food comes from {t.name}?",
            "What should I eat in {t.name}?",
            "Tell me the dish of {t.name}.",
        ),
        "In {t.name} people eat {t.dish}.",
        "{t.dish}",
    ),
    Relation(
        "founded",
        (
            "When was {t.name} founded?",
            "In which year was {t.name} founded?",
            "What is the founding year of {t.name}?",
            "How long has {t.name} been there?",
        ),
        "{t.name} was founded in {t.founded}.",
        "{t.founded}",
    ),
    Relation(
        "mayor",
        (
            "Who is the mayor of {t.name}?",
            "Who is mayor in {t.name}?",
            "What is the name of the mayor of {t.name}?",
            "Which person leads {t.name}?",
            "Tell me the mayor of {t.name}.",
        ),
        "The mayor of {t.name} is {t.mayor}.",
        "{t.mayor}",
    ),
)
_PERSON = (
    Relation(
        "job",
        (
            "What is the job of {t.name}?",
            "What does {t.name} do?",
            "What does {t.name} work as?",
            "Which job does {t.name} have?",
            "Tell me the job of {t.name}.",
        ),
        "{t.name} is a {t.job}.",
        "{t.job}",
    ),
    Relation(
        "town",
        (
            "Where does {t.name} live?",
            "In which town does {t.name} live?",
            "What is the home town of {t.name}?",
            "Where is {t.name} from?",
            "Tell me where {t.name} lives.",
        ),
        "{t.name} lives in {t.town}.",
        "{t.town}",
    ),
    Relation(
        "food",
        (
            "What does {t.name} like to eat?",
            "What is the favourite food of {t.name}?",
            "Which food does {t.name} like?",
            "What does {t.name} eat?",
        ),
        "{t.name} likes {t.food}.",
        "{t.food}",
    ),
    Relation(
        "pet",
        (
            "Which pet does {t.name} have?",
            "What animal does {t.name} keep?",
            "What is the pet of {t.name}?",
            "Does {t.name} have a pet?",
            "What is the pet of {t.name} called?",
        ),
        "{t.name} has a {t.pet} called {t.pet_name}.",
        "{t.pet} called {t.pet_name}",
    ),
)
_ANIMAL = (
    Relation(
        "food",
        (
            "What does a {t.kind} eat?",
            "What is the food of a {t.kind}?",
            "What do I feed to a {t.kind}?",
            "Tell me what a {t.kind} eats.",
        ),
        "A {t.kind} eats {t.food}.",
        "{t.food}",
    ),
    Relation(
        "home",
        (
            "Where does a {t.kind} live?",
            "What is the home of a {t.kind}?",
            "Where can I find a {t.kind}?",
            "Where does a {t.kind} sleep?",
        ),
        "A {t.kind} lives in {t.home}.",
        "{t.home}",
    ),
    Relation(
        "colour",
        (
            "What colour is a {t.kind}?",
            "Which colour does a {t.kind} have?",
            "What is the colour of a {t.kind}?",
            "Tell me the colour of a {t.kind}.",
        ),
        "A {t.kind} is {t.colour}.",
        "{t.colour}",
    ),
)

Thing = Town | Person | Animal


def _grammatical(text: str) -> str:
    """`A owl` becomes `An owl`."""
    for vowel in "aeiou":
        text = text.replace(f" a {vowel}", f" an {vowel}").removeprefix(" ")
        if text.startswith(f"A {vowel}"):
            text = "An" + text[1:]
    return text


def _relations(rng: Random) -> tuple[Thing, tuple[Relation, ...]]:
    pick = rng.random()
    if pick < 0.4:
        return rng.choice(TOWNS), _TOWN
    if pick < 0.85:
        return rng.choice(PEOPLE), _PERSON
    return rng.choice(ANIMALS), _ANIMAL


def draw(rng: Random, split: Split) -> Example:
    """A question; held out are pairs of a wording and what it asks about."""
    while True:
        thing, relations = _relations(rng)
        relation = rng.choice(relations)
        question = rng.choice(relation.questions)
        if belongs(split, "fact", question, thing):
            break
    return Example(
        "facts",
        _grammatical(question.format(t=thing)),
        answer(_grammatical(relation.statement.format(t=thing))),
        relation.target.format(t=thing),
    )


def all_statements() -> list[str]:
    """Every fact of the world as a sentence."""
    groups: tuple[tuple[tuple[Thing, ...], tuple[Relation, ...]], ...] = (
        (TOWNS, _TOWN),
        (PEOPLE, _PERSON),
        (ANIMALS, _ANIMAL),
    )
    return [
        _grammatical(relation.statement.format(t=thing))
        for things, relations in groups
        for thing in things
        for relation in relations
    ]


def draw_portrait(rng: Random) -> Document:
    """A paragraph about one thing of the world."""
    thing, relations = _relations(rng)
    shuffled = rng.sample(relations, len(relations))
    return prose(" ".join(_grammatical(r.statement.format(t=thing)) for r in shuffled))


def draw_about(rng: Random) -> Example:
    """`Tell me about ...`: the facts of one thing, told in order."""
    thing, relations = _relations(rng)
    name = f"a {thing.kind}" if isinstance(thing, Animal) else thing.name
    question = rng.choice(("Tell me about {}.", "What do you know about {}?", "Describe {}."))
    told = [_grammatical(r.statement.format(t=thing)) for r in relations]
    return Example("about", _grammatical(question.format(name)), answer(" ".join(told)), told[0])


def mayors_live_at_home() -> bool:
    """The world agrees with itself: each mayor is a person who lives in the town."""
    return all(
        any(p.name == town.mayor and p.town == town.name for p in PEOPLE) for town in TOWNS
    ) and all(p.town in TOWN_BY_NAME for p in PEOPLE)
