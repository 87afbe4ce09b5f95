"""The table: greedy answers to held-out questions, task by task, chat form and plain form."""

import json
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from random import Random

from transformers import PreTrainedTokenizerFast, Qwen3ForCausalLM

from models.training import arithmetic, chat, dates, facts, odd_one_out, records, search
from models.training.answering import Answer, Tool, answer_all, calculator, searcher
from models.training.document import Example

BATCH = 50


def _is_said(example: Example, text: str) -> bool:
    return text.strip() == example.answer_text


@dataclass(frozen=True, slots=True)
class Task:
    """A row of the table: questions of the test split, a grader, what must be reached."""

    name: str
    draw: Callable[[Random], Example]
    is_right: Callable[[Example, str], bool]
    wanted: float | None = None
    has_calculator: bool = False
    forms: tuple[str, ...] = ("chat", "plain")

    def tool_for(self, example: Example) -> Tool | None:
        if example.pages:
            return searcher(example.pages)
        return calculator if self.has_calculator else None


TASKS = (
    Task("arithmetic, calculator", lambda rng: arithmetic.draw(rng, "test"), arithmetic.is_right,
         0.98, has_calculator=True),
    Task("odd one out", lambda rng: odd_one_out.draw(rng, "test"), odd_one_out.is_right, 0.95),
    Task("dates", lambda rng: dates.draw(rng, "test"), dates.is_right, 0.9),
    Task("dates, options only", lambda rng: dates.draw_choice(rng, "test"), dates.is_right),
    Task("JSON", lambda rng: records.draw(rng, "test"), records.is_right, 0.9),
    Task("search pattern", lambda rng: search.draw(rng, "test"), search.is_right, 0.85),
    Task("facts", lambda rng: facts.draw(rng, "test"), _is_said, 0.98),
    Task("says it does not know", lambda rng: chat.draw_unknown(rng, "test"), chat.is_right),
    Task("arithmetic, alone", lambda rng: arithmetic.draw(rng, "test"), arithmetic.is_right),
)  # fmt: skip
ENDED, ENDED_WANTED = "answers ended by EOS", 0.97


@dataclass(frozen=True, slots=True)
class Score:
    """Shares of right and of ended answers over num_asked questions, and some wrong answers."""

    task: str
    form: str
    num_asked: int
    right: float
    ended: float
    wanted: float | None
    wrong: tuple[tuple[str, str, str], ...]


def ask(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    form: str,
    examples: Sequence[Example],
) -> list[Answer]:
    """The model's answers in that form, each without the lead that the plain form has."""
    answers: list[Answer] = []
    # Equal lengths together: less padding, and a batch ends when its longest answer does.
    order = sorted(range(len(examples)), key=lambda i: len(examples[i].answer_text))
    for start in range(0, len(order), BATCH):
        batch = [examples[i] for i in order[start : start + BATCH]]
        prompts = [e.chat_prompt() if form == "chat" else e.plain_prompt() for e in batch]
        tools = [task.tool_for(example) for example in batch]
        answers += answer_all(model, tokenizer, prompts, tools)
    back = dict(zip(order, answers, strict=True))
    return [back[i] for i in range(len(examples))]


def score(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    task: Task,
    form: str,
    num_asked: int,
) -> Score:
    rng = Random(f"evaluate/{task.name}/{form}")
    examples = [task.draw(rng) for _ in range(num_asked)]
    answers = ask(model, tokenizer, task, form, examples)
    pairs = list(zip(examples, answers, strict=True))
    wrong = [(e, a) for e, a in pairs if not task.is_right(e, a.text)]
    return Score(
        task.name,
        form,
        num_asked,
        1 - len(wrong) / num_asked,
        sum(a.is_ended for a in answers) / num_asked,
        task.wanted,
        tuple((e.question, e.answer_text, a.text) for e, a in wrong[:5]),
    )


def evaluate(
    model: Qwen3ForCausalLM, tokenizer: PreTrainedTokenizerFast, num_asked: int
) -> list[Score]:
    """Every task in every form; prints each as it is done."""
    scores = []
    for task in TASKS:
        for form in task.forms:
            scores.append(score(model, tokenizer, task, form, num_asked))
            done = scores[-1]
            print(f"{done.task:24} {done.form:6} right {done.right:.3f}  ended {done.ended:.3f}",
                  flush=True)  # fmt: skip
    return scores


def ended_share(scores: Sequence[Score]) -> float:
    return sum(s.ended * s.num_asked for s in scores) / sum(s.num_asked for s in scores)


def table(scores: Sequence[Score]) -> str:
    """The table in Markdown: a task is reached when the mean of its forms is."""
    lines = ["| task | wanted | chat | plain | ended |", "|---|---|---|---|---|"]
    for name in dict.fromkeys(s.task for s in scores):
        by_form = {s.form: s for s in scores if s.task == name}
        wanted = next(iter(by_form.values())).wanted
        shown = [f"{by_form[f].right:.3f}" if f in by_form else "" for f in ("chat", "plain")]
        ended = ended_share(list(by_form.values()))
        goal = "" if wanted is None else f"{wanted:.2f}"
        lines.append(f"| {name} | {goal} | {shown[0]} | {shown[1]} | {ended:.3f} |")
    lines.append(f"| {ENDED} | {ENDED_WANTED} | | | {ended_share(scores):.3f} |")
    return "\n".join(lines)


def missed(scores: Sequence[Score]) -> list[str]:
    """The rows that are below what is wanted, in either form."""
    names = [f"{s.task} ({s.form})" for s in scores if s.wanted is not None and s.right < s.wanted]
    return names + ([ENDED] if ended_share(scores) < ENDED_WANTED else [])


def report(scores: Sequence[Score], training: str, folder: Path) -> str:
    """Writes EVALUATION.md and answers its text."""
    numbers = json.loads(training) if training else {}
    lines = [
        "# Evaluation",
        "",
        f"Greedy answers to {scores[0].num_asked} held-out questions per task and form: "
        "combinations that training never saw, with names from a pool that training never saw.",
        "Written by `python -m models.training evaluate`.",
        "",
        table(scores),
        "",
    ]
    if numbers:
        lines += [
            f"Trained on {numbers['tokens'] / 1e6:.1f} M tokens "
            f"in {numbers['training_s'] / 60:.0f} minutes.",
            "",
        ]
    text = "\n".join(lines)
    (folder / "EVALUATION.md").write_text(text)
    return text
