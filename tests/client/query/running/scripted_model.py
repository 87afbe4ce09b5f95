"""A Model in memory: for each prompt the texts that it would like to write, best first."""

import json
import re
from collections.abc import AsyncGenerator, Callable, Sequence
from types import NoneType
from typing import cast

from client.calls import (
    Answer,
    Constraint,
    GenerateCall,
    GeneratedToken,
    Message,
    Prompt,
    ScoreCall,
    Scored,
    Scores,
    Usage,
)
from client.errors import ConstraintRefused
from constraints.where.evaluate import holds
from constraints.where.parser import parse

Wishes = Callable[[str], Sequence[str]]


class ScriptedModel:
    """Writes the first of its wishes that the call's constraint allows, cut at the first stop.

    A token is a character, and each costs a log-probability of -0.1; so scores of longer values
    are lower in sum and equal in mean, unless `liked` says otherwise. Prompts are seen as text.
    """

    def __init__(self, wishes: Wishes, liked: Callable[[str, str], float] | None = None) -> None:
        self._wishes = wishes
        self._liked = liked or (lambda prompt, value: -0.1 * len(value))
        self.calls: list[GenerateCall | ScoreCall] = []

    @property
    def prompts(self) -> list[str]:
        return [as_text(call.prompt) for call in self.calls]

    @property
    def generate_calls(self) -> list[GenerateCall]:
        return [call for call in self.calls if isinstance(call, GenerateCall)]

    async def stream(self, call: GenerateCall) -> AsyncGenerator[GeneratedToken | Answer, None]:
        self.calls.append(call)
        wishes = self._wishes(as_text(call.prompt))
        allowed = [wish for wish in wishes if _allows(call.constraint, wish)]
        if not allowed:
            raise ConstraintRefused("none", details={"reason": "contradiction"})
        text, stop = _cut(allowed[0], call)
        is_long = call.max_tokens is not None and len(text) > call.max_tokens
        text = text[: call.max_tokens]
        tokens = tuple(GeneratedToken(ord(char), char, -0.1) for char in text)
        for token in tokens:
            yield token
        reason = "length" if is_long else "eos" if stop is None else "stop_string"
        usage = Usage(num_prompt_tokens=len(call.prompt), num_output_tokens=len(tokens))
        satisfied = None if call.constraint is None else not is_long
        yield Answer(
            text=text,
            tokens=tokens,
            finish_reason=reason,
            usage=usage,
            stop_string=stop,
            constraint_satisfied=satisfied,
            seed=call.sampling.seed,
        )

    async def generate(self, call: GenerateCall) -> Answer:
        async for part in self.stream(call):
            if isinstance(part, Answer):
                return part
        raise AssertionError

    async def score(self, call: ScoreCall) -> Scores:
        self.calls.append(call)
        values = cast("tuple[str, ...]", call.values)
        prompt = as_text(call.prompt)
        scored = [self._scored(prompt, value) for value in values]
        return Scores(tuple(scored), Usage(num_prompt_tokens=len(prompt)))

    def _scored(self, prompt: str, value: str) -> Scored:
        each = self._liked(prompt, value) / len(value)
        return Scored(tuple(map(ord, value)), (each,) * len(value))


def in_turn(*texts: str) -> Wishes:
    """One wish for each call, in this order."""
    left = list(texts)
    return lambda prompt: [left.pop(0)]


def behind(**wishes: Sequence[str]) -> Wishes:
    """Wishes by the last word of the prompt."""
    return lambda prompt: wishes[re.findall(r"\w+", prompt)[-1]]


def as_text(prompt: Prompt) -> str:
    if isinstance(prompt, str):
        return prompt
    return "".join(f"<{turn.role}>{turn.content}" for turn in prompt if isinstance(turn, Message))


def _allows(constraint: Constraint | None, text: str) -> bool:
    if constraint is None:
        return True
    value = constraint.value
    match constraint.type:
        case "choice":
            return text in cast("list[str]", value)
        case "regex":
            return re.fullmatch(cast("str", value), text) is not None
        case "json":
            kinds = NoneType if constraint.value == {"type": "null"} else list | dict
            return isinstance(json.loads(text), kinds)
        case "where":
            return holds(parse(cast("str", value)), text)
    raise AssertionError(constraint)


def _cut(text: str, call: GenerateCall) -> tuple[str, str | None]:
    found = [(text.find(stop), stop) for stop in call.stop if stop in text]
    if not found:
        return text, None
    start, stop = min(found)
    return text[: start + len(stop) if call.keeps_stop else start], stop
