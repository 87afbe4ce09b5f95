"""Word problems worked step by step, each step with a calculator mark: `3+4=<<3+4=7>>7`."""

from dataclasses import dataclass
from random import Random

from models.training.document import Example, Split, answer
from models.training.holdout import belongs
from models.training.names import draw_two
from models.training.words import THINGS

LARGEST = 9999


@dataclass(frozen=True, slots=True)
class Problem:
    """A story with numbers a, b (2 to 99), c (2 to 40), m, n (2 to 12), t = m * n.

    `steps` are `left operator right` over those letters and earlier results r0, r1; `worked` shows
    step i at {si}.
    """

    text: str
    steps: tuple[str, ...]
    worked: str


_PROBLEMS = (
    Problem(
        "{x} has {a} {things}. {y} gives {x} {b} more. How many {things} does {x} have now?",
        ("a + b",),
        "{x} has {s0} {things} now.",
    ),
    Problem(
        "{x} had {a} {things} and lost {c} of them. How many {things} are left?",
        ("a - c",),
        "{x} has {s0} {things} left.",
    ),
    Problem(
        "{x} has {m} boxes with {n} {things} in each. How many {things} are there?",
        ("m * n",),
        "The boxes hold {s0} {things}.",
    ),
    Problem(
        "{x} shares {t} {things} among {m} friends. How many {things} does each friend get?",
        ("t / m",),
        "Each friend gets {s0} {things}.",
    ),
    Problem(
        "{x} has {m} boxes with {n} {things} in each. {y} gives {x} {b} more {things}. "
        "How many {things} does {x} have?",
        ("m * n", "r0 + b"),
        "The boxes hold {s0} {things}. With {b} more {x} has {s1}.",
    ),
    Problem(
        "{x} buys {m} bags of {n} {things} and gives {c} {things} to {y}. "
        "How many {things} does {x} keep?",
        ("m * n", "r0 - c"),
        "The bags hold {s0} {things}. After giving {c} away {x} keeps {s1}.",
    ),
    Problem(
        "{x} has {a} {things}, {y} has {b} more than {x}. How many {things} do they have together?",
        ("a + b", "a + r0"),
        "{y} has {s0} {things}. Together they have {s1}.",
    ),
    Problem(
        "{x} has {a} {things}. {y} has {m} times as many. How many {things} does {y} have?",
        ("m * a",),
        "{y} has {s0} {things}.",
    ),
    Problem(
        "{x} found {a} {things} on Monday, {b} on Tuesday and {c} on Friday. "
        "How many {things} did {x} find?",
        ("a + b", "r0 + c"),
        "On two days {x} found {s0} {things}. With Friday it is {s1}.",
    ),
    Problem(
        "{x} had {a} {things}, sold {c} and then found {b} more. "
        "How many {things} does {x} have now?",
        ("a - c", "r0 + b"),
        "After the sale {x} had {s0} {things}. Then {x} had {s1}.",
    ),
    Problem(
        "One of the {things} costs {m} coins. {x} has {b} coins and buys {n} of them. "
        "How many coins are left?",
        ("n * m", "b - r0"),
        "{x} pays {s0} coins. There are {s1} coins left.",
    ),
    Problem(
        "{x} makes {m} {things} a day. How many {things} does {x} make in {n} weeks?",
        ("n * 7", "r0 * m"),
        "That is {s0} days. {x} makes {s1} {things}.",
    ),
    Problem(
        "{x} packs {t} {things} into bags of {m}. {y} takes {o} bags. How many bags are left?",
        ("t / m", "r0 - o"),
        "{x} fills {s0} bags. There are {s1} bags left.",
    ),
    Problem(
        "There are {m} shelves with {n} {things} each and {o} shelves with {c} {things} each. "
        "How many {things} are there?",
        ("m * n", "o * c", "r0 + r1"),
        "The first shelves hold {s0} {things}. The others hold {s1}. Together that is {s2}.",
    ),
    Problem("What is {a} plus {b}?", ("a + b",), "It is {s0}."),
    Problem("What is {a}+{b}?", ("a + b",), "It is {s0}."),
    Problem("How much is {a}-{c}?", ("a - c",), "It is {s0}."),
    Problem("What is {m} times {a}?", ("m * a",), "It is {s0}."),
    Problem("Calculate {a}*{m}.", ("a * m",), "It is {s0}."),
    Problem("What is {t} divided by {m}?", ("t / m",), "It is {s0}."),
    Problem("What is {a}+{m}*{n}?", ("m * n", "a + r0"), "First {s0}. Then {s1}."),
    Problem("What is {a}+{b}-{c}?", ("a + b", "r0 - c"), "First {s0}. Then {s1}."),
)


def compute(left: int, operator: str, right: int) -> int | None:
    """The result, or None where it is not a natural number of at most four digits."""
    match operator:
        case "+":
            result = left + right
        case "-":
            result = left - right
        case "*":
            result = left * right
        case _:
            result, rest = divmod(left, right) if right else (0, 1)
            if rest:
                return None
    return result if 0 <= result <= LARGEST else None


def _draw_numbers(rng: Random) -> dict[str, int]:
    m, n = rng.randint(2, 12), rng.randint(2, 12)
    return {
        "a": rng.randint(2, 99),
        "b": rng.randint(2, 99),
        "c": rng.randint(2, 40),
        "m": m,
        "n": n,
        "o": rng.randint(2, 9),
        "t": m * n,
    }


def _work(problem: Problem, numbers: dict[str, int]) -> tuple[dict[str, str], int] | None:
    """The text of every step and the last result; None where a result is not allowed."""
    known = dict(numbers)
    shown: dict[str, str] = {}
    result = 0
    for index, step in enumerate(problem.steps):
        left, operator, right = step.split()
        values = [known[part] if part in known else int(part) for part in (left, right)]
        computed = compute(values[0], operator, values[1])
        if computed is None or computed == 0:
            return None
        result = known[f"r{index}"] = computed
        term = f"{values[0]}{operator}{values[1]}"
        shown[f"s{index}"] = f"{term}=<<{term}={result}>>{result}"
    return shown, result


def draw(rng: Random, split: Split) -> Example:
    """A problem; held out are pairs of a problem and its numbers, and the names."""
    one, other = draw_two(rng, split)
    while True:
        problem = rng.choice(_PROBLEMS)
        numbers = _draw_numbers(rng)
        used = [numbers[k] for k in numbers if f"{{{k}}}" in problem.text]
        worked = _work(problem, numbers)
        if worked is not None and belongs(split, "arithmetic", problem.text, *used):
            break
    shown, result = worked
    words = {"x": one.first, "y": other.first, "things": rng.choice(THINGS)} | numbers
    text = f"{problem.worked.format(**words, **shown)} So the answer is {result}."
    return Example("arithmetic", problem.text.format(**words), answer(text), str(result))


def is_right(example: Example, text: str) -> bool:
    return text.rstrip().endswith(f"So the answer is {example.target}.")
