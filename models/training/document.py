"""The values of the corpus: parts, documents, examples. Knows no task and no tokens.

An example is drawn once and rendered in two forms:

    chat   <|user|>question<|end|><|assistant|>answer<|end|>
    raw    prompt + lead + answer<|end|>            ("Q: question\\nA:" + " " + answer)

The lead (mostly one space) belongs to the answer: a prompt never ends in a space.
"""

from dataclasses import dataclass
from typing import Literal

END = "<|end|>"
PAD = "<|pad|>"
SYSTEM = "<|system|>"
USER = "<|user|>"
ASSISTANT = "<|assistant|>"
SPECIAL_TOKENS = (END, PAD, SYSTEM, USER, ASSISTANT)

PROMPT_WEIGHT = 0.1

Split = Literal["train", "test"]


@dataclass(frozen=True, slots=True)
class Part:
    """A stretch of text and the weight of its tokens in the loss. Parts are tokenized apart."""

    text: str
    weight: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 <= self.weight <= 1.0:
            raise ValueError(f"weight {self.weight} of {self.text!r} is not between 0 and 1")


Document = tuple[Part, ...]


@dataclass(frozen=True, slots=True)
class Example:
    """A question, its worked answer, and the target that a grader looks for in an answer."""

    task: str
    question: str
    answer: Document
    target: str
    system: str | None = None
    raw_prompt: str | None = None
    raw_lead: str = " "
    pages: tuple[tuple[str, str], ...] = ()
    """What a search finds, by title (the search task alone)."""

    @property
    def answer_text(self) -> str:
        return "".join(part.text for part in self.answer)

    def chat_prompt(self) -> str:
        system = "" if self.system is None else f"{SYSTEM}{self.system}{END}"
        return f"{system}{USER}{self.question}{END}{ASSISTANT}"

    def plain_prompt(self) -> str:
        return f"Q: {self.question}\nA:" if self.raw_prompt is None else self.raw_prompt

    def as_chat(self) -> Document:
        return (Part(self.chat_prompt(), PROMPT_WEIGHT), *self.answer, Part(END))

    def as_plain(self) -> Document:
        first, *rest = self.answer
        head = Part(self.raw_lead + first.text, first.weight)
        return (Part(self.plain_prompt(), PROMPT_WEIGHT), head, *rest, Part(END))


def answer(text: str) -> Document:
    """An answer of one part, all of it learnt."""
    return (Part(text),)


def prose(text: str) -> Document:
    """A document without a question."""
    return (Part(text), Part(END))


def text_of(document: Document) -> str:
    return "".join(part.text for part in document)
