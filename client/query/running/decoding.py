"""What decoders work with: prompts in their parts, options, answers of holes, the ends of traces.

"{:user}Hi. {:assistant}[X]"  ->  |user| Hi. |assistant| Hello! (X) |
without roles a prompt is plain text; with roles it is a list of turns for the chat template
"""

import asyncio
import math
from collections.abc import Coroutine, Iterable, Mapping, Sequence
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, TypeVar

from client.calls import Message, Prompt, Scored
from client.query.errors import Place, QueryError, Source
from client.sampling import Sampling

ASSISTANT = "assistant"
SYSTEM = "system"


@dataclass(frozen=True, slots=True)
class PromptPart:
    """A part of a prompt: fixed text, the text of `hole`, or the start of a turn of `role`."""

    text: str
    hole: str | None = None
    role: str | None = None


@dataclass(frozen=True, slots=True)
class Span:
    """The place of a hole's text in a prompt: characters, the end exclusive."""

    hole: str
    start: int
    end: int


PromptParts = tuple[PromptPart, ...]


class Transcript:
    """Owner of one run's prompt parts."""

    def __init__(self) -> None:
        self._parts: list[PromptPart] = []

    @property
    def prompt_parts(self) -> PromptParts:
        return tuple(self._parts)

    @property
    def is_plain(self) -> bool:
        """Whether no turn has begun."""
        return all(part.role is None for part in self._parts)

    @property
    def has_holes(self) -> bool:
        return any(part.hole is not None for part in self._parts)

    def say(self, text: str) -> None:
        if text:
            self._parts.append(PromptPart(text))

    def turn(self, role: str) -> None:
        self._parts.append(PromptPart(f"{{:{role}}}", role=role))

    def answer_now(self) -> None:
        """Prepare for a hole: in a chat, begin a turn of the assistant if necessary."""
        roles = [part.role for part in self._parts if part.role is not None]
        if roles and roles[-1] != ASSISTANT:
            self.turn(ASSISTANT)

    def fill(self, hole: str, text: str) -> None:
        self._parts.append(PromptPart(text, hole=hole))

    def mark(self) -> int:
        """A position for `truncate`."""
        return len(self._parts)

    def truncate(self, mark: int) -> None:
        """Remove the parts behind the mark."""
        del self._parts[mark:]


def text_of(prompt_parts: Sequence[PromptPart]) -> str:
    """The prompt for people: turns begin with their tags, as in the program."""
    return "".join(part.text for part in prompt_parts)


def spans_of(prompt_parts: Sequence[PromptPart]) -> tuple[Span, ...]:
    """The places of the holes' texts in `text_of`."""
    spans = []
    position = 0
    for part in prompt_parts:
        end = position + len(part.text)
        if part.hole is not None:
            spans.append(Span(part.hole, position, end))
        position = end
    return tuple(spans)


def prompt_of(prompt_parts: Sequence[PromptPart]) -> Prompt:
    """The prompt for the model: text, or turns if the program uses roles."""
    if all(part.role is None for part in prompt_parts):
        return text_of(prompt_parts)
    return messages_of(prompt_parts)


def messages_of(prompt_parts: Sequence[PromptPart]) -> tuple[Message, ...]:
    """The turns, without surrounding white space, which is layout of the program.

    Text before the first tag is a system turn. A last turn of the assistant keeps its trailing
    white space, since the model continues it; an empty one is left to the template.
    """
    turns: list[tuple[str, str]] = [(SYSTEM, "")]
    for part in prompt_parts:
        if part.role is not None:
            turns.append((part.role, ""))
        else:
            role, text = turns[-1]
            turns[-1] = (role, text + part.text)
    (lead_role, lead), *middle, (last_role, last) = turns
    messages = [Message(lead_role, lead.strip())] if lead.strip() else []
    messages += [Message(role, text.strip()) for role, text in middle]
    if last_role != ASSISTANT:
        messages.append(Message(last_role, last.strip()))
    elif last.strip():
        messages.append(Message(ASSISTANT, last.lstrip()))
    return tuple(messages)


T = TypeVar("T")


async def gather_or_cancel(parts: Iterable[Coroutine[Any, Any, T]]) -> list[T]:
    """All results in order. If one fails, the others are cancelled and its error is raised."""
    tasks = [asyncio.ensure_future(part) for part in parts]
    try:
        return await asyncio.gather(*tasks)
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """The options of a decoder clause.

    sampling:   its seed is that of trace 0; trace i has seed + i
    max_tokens: limit for each hole; None: what the model's context leaves
    max_len:    limit for all holes of a trace together; None: as above
    tries:      the most requests of one hole, when checks fail on its text
    stops:      how a stop phrase ends a hole: "cut" drops the rest of a token behind it, "exact"
                forbids tokens that run past it
    normalised: distributions choose by the mean log-probability per token
    """

    sampling: Sampling
    max_tokens: int | None = None
    max_len: int | None = None
    tries: int = 10
    stops: str = "cut"
    normalised: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Choice:
    """The distribution of a hole over its support: log-probabilities by value.

    `plain`: from sums over tokens, `normalised`: from means per token; both are normalised over the
    support, so the probabilities add up to one.
    """

    plain: Mapping[str, float]
    normalised: Mapping[str, float]


@dataclass(frozen=True, slots=True, kw_only=True)
class HoleAnswer:
    """The model's answer for a hole.

    text:    as generated, with a kept stop phrase
    logprob: the sum over its tokens, with the end token
    """

    text: str
    logprob: float = 0.0
    num_tokens: int = 0
    choice: Choice | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedHole:
    """A finished hole: its name, the answer, and the value of its variable."""

    name: str
    answer: HoleAnswer
    value: object


class Rejected(QueryError):
    """A check fails on a hole's text. `value`: the converted text."""

    def __init__(self, message: str, value: object, place: Place, source: Source) -> None:
        super().__init__(message, place, source)
        self.value = value


@dataclass(frozen=True, slots=True, kw_only=True)
class TraceEnd:
    """A trace whose body has returned: number, log, return value and prompt.

    `variables`: of the program's holes, with their last values.
    """

    index: int
    finished: tuple[FinishedHole, ...]
    value: object
    prompt_parts: PromptParts
    variables: Mapping[str, object]

    @property
    def logprob(self) -> float:
        """The sum over all holes."""
        return sum(hole.answer.logprob for hole in self.finished)


def choice_of(values: Sequence[str], scored: Sequence[Scored]) -> Choice:
    """The probability of each value among these."""
    by_value = dict(zip(values, scored, strict=True))
    return Choice(
        plain=_shares({value: one.total for value, one in by_value.items()}),
        normalised=_shares({value: one.mean for value, one in by_value.items()}),
    )


def best_of(choice: Choice, *, normalised: bool) -> str:
    """The most probable value; on a tie the first.

    normalised: by the mean log-probability per token, which does not penalise long values; else by
                that of the whole value
    """
    shares = choice.normalised if normalised else choice.plain
    return max(shares, key=shares.__getitem__)


def chosen(values: Sequence[str], scored: Sequence[Scored], *, normalised: bool) -> HoleAnswer:
    """The most probable value as a hole's answer."""
    choice = choice_of(values, scored)
    best = best_of(choice, normalised=normalised)
    one = scored[list(values).index(best)]
    return HoleAnswer(text=best, logprob=one.total, num_tokens=len(one.token_ids), choice=choice)


def _shares(scores: Mapping[str, float]) -> Mapping[str, float]:
    """The log-softmax of the scores."""
    top = max(scores.values())
    if top == -math.inf:
        even = -math.log(len(scores))
        return MappingProxyType(dict.fromkeys(scores, even))
    total = top + math.log(sum(math.exp(score - top) for score in scores.values()))
    return MappingProxyType({value: score - total for value, score in scores.items()})
