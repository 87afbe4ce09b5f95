"""The questions: held-out ones of the bundled model's world, drawn from a fixed seed."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from random import Random
from types import MappingProxyType

from models.training import arithmetic, dates, odd_one_out, search
from models.training.document import Example, Split

SEED = "paper"
SHEET = 3
# So many worked examples as bring the prompts of the paper's Table 4 near to its own (about 700 and
# 450 tokens) within the bundled model's context.
NUM_EXAMPLES: Mapping[str, int] = MappingProxyType({"react": 2, "arithmetic": 6})
_NO_PAGES: Mapping[str, str] = MappingProxyType({})


@dataclass(frozen=True, slots=True)
class Case:
    """Questions, what answers may be (if that is given), and the right answer.

    `pages`: what a search finds, by title. `examples`: worked ones, in front of the prompt.
    """

    questions: tuple[str, ...]
    options: tuple[str, ...]
    target: str
    pages: Mapping[str, str]
    examples: str = ""

    @property
    def question(self) -> str:
        """The only one."""
        (question,) = self.questions
        return question


def _odd_one_out(rng: Random) -> Case:
    example = odd_one_out.draw(rng, "test")
    listed = example.question.rstrip(".?").rpartition(": ")[2]
    return _case(example, tuple(listed.split(", ")))


def _date_understanding(rng: Random) -> Case:
    example = dates.draw_choice(rng, "test")
    _, _, listed = example.question.partition("Options:\n")
    return _case(example, tuple(line.partition(" ")[0] for line in listed.splitlines()))


def _react(rng: Random) -> Case:
    """With at least two searches, as questions of several hops have."""
    while True:
        example = search.draw(rng, "test")
        if example.answer_text.count("Search '") > 1:
            return _case(example)


def _arithmetic(rng: Random) -> Case:
    """A sheet of three problems, which need about as many calculations as the paper's one."""
    sheet = [arithmetic.draw(rng, "test") for _ in range(SHEET)]
    questions = tuple(example.question for example in sheet)
    return Case(questions, (), ", ".join(example.target for example in sheet), _NO_PAGES)


def _case(example: Example, options: tuple[str, ...] = ()) -> Case:
    pages = MappingProxyType(dict(example.pages))
    return Case((example.question,), options, example.target, pages)


DRAWS: Mapping[str, Callable[[Random], Case]] = MappingProxyType(
    {
        "odd_one_out": _odd_one_out,
        "date_understanding": _date_understanding,
        "react": _react,
        "arithmetic": _arithmetic,
    }
)


_WORKED: Mapping[str, Callable[[Random, Split], Example]] = MappingProxyType(
    {"react": search.draw, "arithmetic": arithmetic.draw}
)


def draw(study: str, num_cases: int) -> tuple[Case, ...]:
    """The first `num_cases` of a study; more of them begin with the same."""
    rng = Random(f"{SEED}/{study}")
    examples = _examples(study)
    return tuple(replace(DRAWS[study](rng), examples=examples) for _ in range(num_cases))


def _examples(study: str) -> str:
    """Questions that the model was trained on, with their answers: the same for every case."""
    rng = Random(f"{SEED}/{study}/examples")
    shown = [_WORKED[study](rng, "train") for _ in range(NUM_EXAMPLES.get(study, 0))]
    return "".join(f"{e.plain_prompt()}{e.raw_lead}{e.answer_text}\n\n" for e in shown)
