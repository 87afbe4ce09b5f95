"""Date questions, free or with options; the options are walked through one by one.

The walk is what makes the options learnable: a small model that has computed the date still fails
to look its letter up in one step, but it can say of each option in turn whether it is the date.
"""

from calendar import month_name, monthrange
from dataclasses import dataclass
from datetime import date, timedelta
from random import Random

from models.training.document import Example, Split, answer
from models.training.holdout import belongs

FIRST_DAY, NUM_DAYS = date(1950, 1, 1), 90 * 365


@dataclass(frozen=True, slots=True)
class Shift:
    """A distance in time: the question's words, the words of the working, how far it is."""

    asked: tuple[str, ...]
    said: str
    days: int = 0
    months: int = 0

    def apply(self, day: date) -> date:
        """The shifted day; a month before 31 May is 30 April."""
        index = day.year * 12 + day.month - 1 + self.months
        year, month = divmod(index, 12)
        last = monthrange(year, month + 1)[1]
        return date(year, month + 1, min(day.day, last)) + timedelta(days=self.days)


_SHIFTS = (
    Shift(("tomorrow", "24 hours later", "one day from today"), "Tomorrow", days=1),
    Shift(("yesterday", "24 hours ago", "one day ago"), "Yesterday", days=-1),
    Shift(("one week from today", "a week from now", "in 7 days"), "In a week it", days=7),
    Shift(("one week ago", "a week ago", "7 days ago"), "A week ago it", days=-7),
    Shift(("in 10 days", "10 days from now"), "In 10 days it", days=10),
    Shift(("10 days ago",), "10 days ago it", days=-10),
    Shift(("one month from today", "a month from now"), "In a month it", months=1),
    Shift(("a month ago", "one month ago"), "A month ago it", months=-1),
    Shift(("one year from today", "a year from now"), "In a year it", months=12),
    Shift(("a year ago", "one year ago"), "A year ago it", months=-12),
    Shift(("today",), "Today"),
)
_ANCHORS = (
    ("Today is {day}.", Shift((), "")),
    ("It is {day} today.", Shift((), "")),
    ("The current date is {day}.", Shift((), "")),
    ("It was {day} yesterday.", Shift((), "", days=1)),
    ("Yesterday was {day}.", Shift((), "", days=1)),
    ("Tomorrow is {day}.", Shift((), "", days=-1)),
    ("It was {day} a week ago.", Shift((), "", days=7)),
)
_ANCHOR_WEIGHTS = (6, 3, 3, 1, 1, 1, 1)


def show(day: date) -> str:
    """MM/DD/YYYY."""
    return f"{day.month:02d}/{day.day:02d}/{day.year}"


def _words(rng: Random, day: date) -> str:
    name = month_name[day.month]
    return rng.choice(
        (
            f"{name} {day.day}, {day.year}",
            f"{day.day} {name} {day.year}",
            f"{name[:3]} {day.day}, {day.year}",
            show(day),
        )
    )


def _options(rng: Random, right: date, today: date) -> list[str]:
    """Three to five different dates as text, the right one among them."""
    near = [shift.apply(base) for shift in _SHIFTS for base in (today, right)]
    swapped = [date(day.year + rng.randint(-9, 9), day.month, min(day.day, 28)) for day in near]
    wrong = sorted({show(day) for day in near + swapped} - {show(right)})
    options = [*rng.sample(wrong, rng.randint(2, 4)), show(right)]
    rng.shuffle(options)
    return options


def walk(options: list[str], right: str) -> str:
    """`(A) 10/09/1970 no. (B) 09/09/1970 yes. So the answer is (B).`"""
    steps = []
    for letter, option in zip("ABCDEF", options, strict=False):
        steps.append(f"({letter}) {option} {'yes' if option == right else 'no'}.")
        if option == right:
            return f"{' '.join(steps)} So the answer is ({letter})."
    raise ValueError(f"{right} is none of {options}")


def _ask_options(question: str, worked: str, options: list[str], right: str) -> Example:
    listed = "\n".join(f"({k}) {o}" for k, o in zip("ABCDEF", options, strict=False))
    target = f"({'ABCDEF'[options.index(right)]})"
    text = f"{worked} {walk(options, right)}"
    return Example("dates", f"{question}\nOptions:\n{listed}", answer(text), target)


def _draw_working(rng: Random, split: Split) -> tuple[str, str, date, date]:
    """Question, working, today and the asked date; held out are (today, shift, anchor)."""
    while True:
        today = FIRST_DAY + timedelta(days=rng.randrange(NUM_DAYS))
        shift = rng.choice(_SHIFTS)
        [(anchor, offset)] = rng.choices(_ANCHORS, _ANCHOR_WEIGHTS)
        if belongs(split, "date", today, shift.said, anchor):
            break
    told = today - timedelta(days=offset.days)
    asked = rng.choice(shift.asked)
    question = f"{anchor.format(day=_words(rng, told))} What is the date {asked} in MM/DD/YYYY?"
    right = shift.apply(today)
    worked = f"Today is {show(today)}."
    if shift.days or shift.months:
        verb = "was" if right < today else "is"
        worked += f" {shift.said} {verb} {show(right)}."
    return question, worked, today, right


def draw_direct(rng: Random, split: Split) -> Example:
    question, worked, _, right = _draw_working(rng, split)
    text = f"{worked} So the answer is {show(right)}."
    return Example("dates", question, answer(text), show(right))


def draw_choice(rng: Random, split: Split) -> Example:
    question, worked, today, right = _draw_working(rng, split)
    return _ask_options(question, worked, _options(rng, right, today), show(right))


def draw_lookup(rng: Random, split: Split) -> Example:
    """Practice for the walk alone: which option is a given date."""
    while True:
        right = FIRST_DAY + timedelta(days=rng.randrange(NUM_DAYS))
        if belongs(split, "lookup", right):
            break
    question = f"Which option is {_words(rng, right)}?"
    worked = f"The date is {show(right)}."
    return _ask_options(question, worked, _options(rng, right, right), show(right))


def draw(rng: Random, split: Split) -> Example:
    """Half with options, half without."""
    return draw_choice(rng, split) if rng.random() < 0.5 else draw_direct(rng, split)


def is_right(example: Example, text: str) -> bool:
    return text.rstrip().endswith(f"So the answer is {example.target}.")
