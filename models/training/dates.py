"""Date questions, free or with options; the options are walked through digit by digit.

The walk is what makes the options learnable. A small model that has computed a date can neither
look its letter up in one step nor compare eight digits at once; it can write an option down up to
the first digit that differs:

    The date is 09/09/1970. (A) 1 no. (B) 09/08 no. (C) 09/09/1970 yes. So the answer is (C).
"""

from calendar import month_name, monthrange
from dataclasses import dataclass
from datetime import date, timedelta
from os.path import commonprefix
from random import Random

from models.training.document import Document, Example, Split, answer, prose
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
    """`(A) 1 no. (B) 09/09/1970 yes. So the answer is (B).`"""
    steps: list[str] = []
    for letter, option in zip("ABCDEF", options, strict=False):
        if option == right:
            return f"{' '.join([*steps, f'({letter}) {option} yes.'])} So the answer is ({letter})."
        num_equal = len(commonprefix([option, right]))
        steps.append(f"({letter}) {option[: num_equal + 1]} no.")
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
        worked += f" {_say(shift, today)}"
    return question, worked, today, right


def _say(shift: Shift, today: date) -> str:
    right = shift.apply(today)
    return f"{shift.said} {'was' if right < today else 'is'} {show(right)}."


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


def draw_drill(rng: Random, split: Split) -> Document:
    """Practice for the calendar alone: one day and all that lies around it."""
    while True:
        today = FIRST_DAY + timedelta(days=rng.randrange(NUM_DAYS))
        [(anchor, offset)] = rng.choices(_ANCHORS, (1, 0, 0, 2, 2, 2, 4))
        shifts = [s for s in _SHIFTS[:-1] if belongs(split, "date", today, s.said, anchor)]
        if shifts and belongs(split, "date", today, "drill", anchor):
            break
    told = today - timedelta(days=offset.days)
    rng.shuffle(shifts)
    around = [_say(shift, today) for shift in shifts]
    return prose(
        " ".join([anchor.format(day=_words(rng, told)), f"Today is {show(today)}.", *around])
    )


def draw(rng: Random, split: Split) -> Example:
    """Half with options, half without."""
    return draw_choice(rng, split) if rng.random() < 0.5 else draw_direct(rng, split)


def is_right(example: Example, text: str) -> bool:
    return text.rstrip().endswith(f"So the answer is {example.target}.")
