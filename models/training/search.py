"""The Tho/Act/Obs pattern: thoughts, searches in a small encyclopaedia, a finish.

    Tho 1: I need to find the home town of Doric Caldman.
    Act 2: Search 'Doric Caldman'
    Obs 2: Doric Caldman is a sailor from Eldhaven.        <- written by the search, not the model
    Tho 3: ...
    Act 4: Finish 'great oak'

Every example has an encyclopaedia of its own, so that the answer must be read and not remembered.
A search may find nothing; then the model asks again in simpler words, or finishes with 'unknown'.
"""

import re
from dataclasses import dataclass
from random import Random

from models.training.document import Example, Part, Split
from models.training.holdout import belongs
from models.training.names import Someone, draw_someone, draw_town
from models.training.words import FOODS, JOBS, PETS, RIVERS, SIGHTS, with_article

INSTRUCTION = "Answer with thoughts (Tho), searches (Act, Obs) and a finish."
NOTHING = "Nothing found."
_OBSERVED = 0.1
_FINISH = re.compile(r"Act \d+: Finish '([^'\n]*)'\s*$")


@dataclass(frozen=True, slots=True)
class Case:
    """A person, a friend, their towns and what is told of them."""

    who: Someone
    friend: Someone
    town: str
    friend_town: str
    mayor: Someone
    job: str
    friend_job: str
    pet: str
    sight: str
    river: str
    dish: str


@dataclass(frozen=True, slots=True)
class Hop:
    """One search: what is sought, where, and the sentence that says what was found."""

    title: str
    found: str


@dataclass(frozen=True, slots=True)
class Plan:
    """A question over a case, the plan in words, the hops and the final value."""

    question: str
    need: str
    hops: tuple[Hop, ...]
    target: str


_ONE = "{c.who.full}"
_FRIEND = "{c.friend.full}"
_LIVES = Hop(_ONE, "{c.who.full} is from {c.town}.")
_KNOWS = Hop(_ONE, "The friend of {c.who.full} is {c.friend.full}.")
_FRIEND_LIVES = Hop(_FRIEND, "{c.friend.full} is from {c.friend_town}.")
_TOWN_VALUES = (
    ("sight", "What is the home town of {p} known for?", "is known for the {c.sight}", "{c.sight}"),
    ("river", "Which river flows through the home town of {p}?", "lies on the river {c.river}",
     "{c.river}"),
    ("dish", "What do people eat in the home town of {p}?", "has the dish {c.dish}", "{c.dish}"),
    ("mayor", "Who is the mayor of the home town of {p}?", "has the mayor {c.mayor.full}",
     "{c.mayor.full}"),
)  # fmt: skip


def _plans() -> tuple[Plan, ...]:
    plans = [
        Plan("What is the job of {c.who.full}?", "the job of {c.who.full}",
             (Hop(_ONE, "{c.who.full} is a {c.job}."),), "{c.job}"),
        Plan("Where does {c.who.full} live?", "the home town of {c.who.full}",
             (_LIVES,), "{c.town}"),
        Plan("Which pet does {c.who.full} have?", "the pet of {c.who.full}",
             (Hop(_ONE, "{c.who.full} has a {c.pet}."),), "{c.pet}"),
        Plan("What is the job of the friend of {c.who.full}?",
             "the friend of {c.who.full}, then the job of the friend",
             (_KNOWS, Hop(_FRIEND, "{c.friend.full} is a {c.friend_job}.")), "{c.friend_job}"),
        Plan("Where does the friend of {c.who.full} live?",
             "the friend of {c.who.full}, then the home town of the friend",
             (_KNOWS, _FRIEND_LIVES), "{c.friend_town}"),
    ]  # fmt: skip
    for value, question, says, target in _TOWN_VALUES:
        plans.append(
            Plan(
                question.format(p=_ONE),
                f"the home town of {_ONE}, then the {value} of the town",
                (_LIVES, Hop("{c.town}", f"{{c.town}} {says}.")),
                target,
            )
        )
    return tuple(plans)


_PLANS = _plans()
_THREE_HOPS = Plan(
    "What is the home town of the friend of {c.who.full} known for?",
    "the friend of {c.who.full}, then the town of the friend, then the sight of the town",
    (_KNOWS, _FRIEND_LIVES, Hop("{c.friend_town}", "{c.friend_town} is known for the {c.sight}.")),
    "{c.sight}",
)


def _draw_case(rng: Random, split: Split) -> Case:
    return Case(
        who=draw_someone(rng, split),
        friend=draw_someone(rng, split),
        town=draw_town(rng, split),
        friend_town=draw_town(rng, split),
        mayor=draw_someone(rng, split),
        job=rng.choice(JOBS),
        friend_job=rng.choice(JOBS),
        pet=rng.choice(PETS),
        sight=rng.choice(SIGHTS),
        river=rng.choice(RIVERS),
        dish=f"{rng.choice(FOODS)} {rng.choice(('soup', 'pie', 'stew', 'cake', 'tart'))}",
    )


def _person_page(rng: Random, case: Case) -> str:
    who = case.who
    home = rng.choice((f"is {with_article(case.job)} from {case.town}",
                       f"lives in {case.town} and works as {with_article(case.job)}"))  # fmt: skip
    friend = rng.choice((f"The friend of {who.first} is {case.friend.full}",
                         f"{who.he.title()} is a friend of {case.friend.full}"))  # fmt: skip
    pet = f"{who.he.title()} has {with_article(case.pet)}"
    rest = [friend, pet]
    rng.shuffle(rest)
    return f"{who.full} {home}. {'. '.join(rest)}."


def _town_page(rng: Random, case: Case, town: str) -> str:
    about = [
        f"It lies on the river {case.river}",
        f"It is known for the {case.sight}",
        f"The dish of the town is {case.dish}",
        f"The mayor is {case.mayor.full}",
    ]
    told = rng.sample(about, 4)
    return f"{town} is a town. {'. '.join(told)}."


def _pages(rng: Random, case: Case) -> tuple[tuple[str, str], ...]:
    friend = (
        f"{case.friend.full} is {with_article(case.friend_job)} from {case.friend_town}. "
        f"{case.friend.he.title()} likes {rng.choice(FOODS)}."
    )
    return (
        (case.who.full, _person_page(rng, case)),
        (case.friend.full, friend),
        (case.town, _town_page(rng, case, case.town)),
        (case.friend_town, _town_page(rng, case, case.friend_town)),
    )


def look_up(pages: tuple[tuple[str, str], ...], title: str) -> str:
    """What a search for the title shows."""
    return dict(pages).get(title.strip(), NOTHING)


class _Transcript:
    """Writes the numbered lines; observations weigh little, since the search writes them."""

    def __init__(self) -> None:
        self.parts: list[Part] = []
        self.number = 0

    def think(self, thought: str) -> None:
        self.number += 1
        self.parts.append(Part(f"Tho {self.number}: {thought}\n"))

    def search(self, title: str, observation: str) -> None:
        self.number += 1
        self.parts.append(Part(f"Act {self.number}: Search '{title}'\n"))
        self.parts.append(Part(f"Obs {self.number}: {observation}\n", _OBSERVED))

    def finish(self, value: str) -> None:
        self.number += 1
        self.parts.append(Part(f"Act {self.number}: Finish '{value}'"))


def _grammatical(text: str) -> str:
    for vowel in "aeiou":
        text = text.replace(f" is a {vowel}", f" is an {vowel}")
    return text


def _tell(rng: Random, plan: Plan, case: Case, pages: tuple[tuple[str, str], ...]) -> _Transcript:
    told = _Transcript()
    told.think(f"I need to find {plan.need.format(c=case)}.")
    if rng.random() < 0.1:
        told.search(f"{plan.need.format(c=case).split(',')[0]}", NOTHING)
        told.think(f"I found nothing. I search for {case.who.full}.")
    for index, hop in enumerate(plan.hops):
        title = hop.title.format(c=case)
        if index:
            found = plan.hops[index - 1].found.format(c=case)
            told.think(_grammatical(f"{found} I need to search for {title}."))
        told.search(title, look_up(pages, title))
        if look_up(pages, title) == NOTHING:
            told.think(f"I found nothing about {title}.")
            told.finish("unknown")
            return told
    told.think(_grammatical(plan.hops[-1].found.format(c=case)))
    told.finish(plan.target.format(c=case))
    return told


def draw(rng: Random, split: Split) -> Example:
    """A question over people and towns of the split's pools; held out are also (plan, person)."""
    while True:
        case = _draw_case(rng, split)
        plan = _THREE_HOPS if rng.random() < 0.12 else rng.choice(_PLANS)
        if belongs(split, "search", plan.question, case.who.full):
            break
    pages = _pages(rng, case)
    if rng.random() < 0.08:
        missing = rng.choice(plan.hops).title.format(c=case)
        pages = tuple(page for page in pages if page[0] != missing)
    told = _tell(rng, plan, case, pages)
    question = plan.question.format(c=case)
    finished = _FINISH.search(told.parts[-1].text)
    if finished is None:
        raise ValueError(f"transcript without an end: {told.parts[-1].text!r}")
    return Example(
        "search",
        question,
        tuple(told.parts),
        finished[1],
        system=INSTRUCTION,
        raw_prompt=f"{INSTRUCTION}\nQ: {question}\n",
        raw_lead="",
        pages=pages,
    )


def is_right(example: Example, text: str) -> bool:
    finished = _FINISH.search(text)
    return finished is not None and finished[1] == example.target
