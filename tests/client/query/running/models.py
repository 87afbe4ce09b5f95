"""Models in memory.

ScriptedModel     for each prompt the texts that it would like to write, best first
TreeModel         four tokens, log-probabilities by a hash: its whole tree can be searched
Failing, Silent   end a program in the middle of a hole, or never answer
"""

import asyncio
import json
import math
import re
from collections.abc import AsyncGenerator, Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from functools import cache
from itertools import product
from types import NoneType
from typing import cast
from zlib import crc32

from client.calls import (
    Answer,
    BeamDropped,
    BeamsAnswer,
    BeamsCall,
    BeamsReport,
    BeamState,
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
from client.errors import ConstraintRefused, InvalidRequest, ServerFailed, TandemError
from client.query.errors import QueryError
from constraints.where.evaluate import holds
from constraints.where.parser import parse
from router.engine.beam_search import (
    Ask,
    AskResult,
    Beam,
    BeamGroup,
    BeamScoring,
    BeamSearch,
    CheckHole,
    DeadEnd,
    EndedHole,
    NextTokens,
    OutputTexts,
    SearchOutcome,
)
from router.engine.beam_search import Hole as SearchHole
from router.engine.beam_search import Place as SearchPlace
from router.request.errors import RouterError
from tests.router.rig import ANY_TEXT, asking

Wishes = Callable[[str], Sequence[str]]


class _Streaming:
    """A model whose answers are the ends of its streams."""

    def stream(self, call: GenerateCall) -> AsyncGenerator[GeneratedToken | Answer, None]:
        raise NotImplementedError

    async def generate(self, call: GenerateCall) -> Answer:
        return [part async for part in self.stream(call) if isinstance(part, Answer)][-1]


class ScriptedModel(_Streaming):
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


_UNBOUNDED = 99


class _Refusal(RouterError):
    def __init__(self, error: ConstraintRefused) -> None:
        super().__init__(str(error))
        self.error = error


class _Texts(OutputTexts):
    def __init__(self) -> None: ...

    def text(self, hole: SearchHole, output_ids: tuple[int, ...]) -> str:
        return text_of(output_ids)

    def is_ended(self, hole: SearchHole, output_ids: tuple[int, ...]) -> bool:
        return False


def _group(call: BeamsCall) -> BeamGroup:
    holes = []
    for hole in call.holes:
        constraint = None if hole.call.constraint is None else ANY_TEXT
        request = asking(max_new_tokens=hole.call.max_tokens or _UNBOUNDED, constraint=constraint)
        holes.append(SearchHole(request, hole.is_last))
    beams = [
        Beam(
            hole=beam.hole,
            output_ids=beam.output,
            logprob=beam.logprob,
            num_tokens=beam.num_tokens,
            output_logprob=beam.output_logprob,
        )
        for beam in call.beams
    ]
    return BeamGroup(
        width=call.width,
        holes=tuple(holes),
        beams=tuple(beams),
        end_token_ids=frozenset((END,)),
        scoring=BeamScoring(
            length_penalty=call.length_penalty,
            early_stopping=call.early_stopping,
            max_len=call.max_len,
        ),
        ended=call.ended,
        num_candidates=call.num_candidates,
    )


def _states(places: Iterable[SearchPlace]) -> tuple[BeamState, ...]:
    return tuple(
        BeamState(
            hole=place.beam.hole,
            output=place.beam.output_ids,
            logprob=place.beam.logprob,
            num_tokens=place.beam.num_tokens,
            output_logprob=place.beam.output_logprob,
            text="" if place.closed is None else place.closed.text,
            is_ended=place.closed is not None,
        )
        for place in places
    )


TOKENS = ("a", "b", "ab", ".")
END = len(TOKENS)
_MAX_LEN = 4
Ids = tuple[int, ...]


def text_of(ids: Sequence[int]) -> str:
    return "".join(TOKENS[token_id] for token_id in ids if token_id != END)


@cache
def _language(kind: str, value: str) -> frozenset[str]:
    letters = (
        "".join(each) for size in range(_MAX_LEN + 1) for each in product("ab.", repeat=size)
    )
    if kind == "choice":
        return frozenset(value.split("|"))
    expression = parse(value)
    return frozenset(text for text in letters if holds(expression, text))


@cache
def _num_needed(text: str, language: frozenset[str] | None, most: int) -> int:
    """Tokens that complete the text at least; more than `most` if that many do not."""
    if language is None or text in language:
        return 0
    if most == 0 or not any(word.startswith(text) for word in language):
        return most + 1
    return 1 + min(_num_needed(text + token, language, most - 1) for token in TOKENS)


class TreeModel(_Streaming):
    """`seed` makes another model. `num_asked` counts tokens asked for."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.num_asked = 0

    def next_logprobs(self, call: GenerateCall, ids: Ids) -> dict[int, float]:
        """Of the legal tokens, the most probable first."""
        language = _language_of(call.constraint)
        left = (call.max_tokens or 99) - len(ids)
        legal = [
            token_id
            for token_id, token in enumerate(TOKENS)
            if _num_needed(text_of(ids) + token, language, left - 1) < left
        ]
        if language is None or text_of(ids) in language:
            legal.append(END)
        if not legal:
            raise ConstraintRefused("nothing may follow", details={"reason": "broken"})
        scores = {each: self._score(as_text(call.prompt), ids, each) for each in legal}
        for token_id, bias in call.sampling.logit_bias.items():
            if token_id in scores:
                scores[token_id] += bias
        total = math.log(sum(map(math.exp, scores.values())))
        shares = {token_id: score - total for token_id, score in scores.items()}
        return dict(sorted(shares.items(), key=lambda pair: -pair[1]))

    def _score(self, prompt: str, ids: Ids, token_id: int) -> float:
        seen = f"{self._seed}|{prompt}|{text_of(ids)}|{token_id}"
        return crc32(seen.encode()) % 4001 / 1000

    def outputs(self, call: GenerateCall, ids: Ids = ()) -> Iterator[tuple[Ids, float]]:
        """All that the call may answer, each with its log-probability."""
        for token_id, logprob in self.next_logprobs(call, ids).items():
            made = (*ids, token_id)
            if token_id == END or len(made) == call.max_tokens:
                yield made, logprob
                continue
            for output, rest in self.outputs(call, made):
                yield output, logprob + rest

    async def stream(self, call: GenerateCall) -> AsyncGenerator[GeneratedToken | Answer, None]:
        self.num_asked += 1
        ids = call.output
        if len(ids) >= (call.max_tokens or 99) or END in ids:
            raise InvalidRequest("it has ended", field="output")
        made: list[GeneratedToken] = []
        reason = None
        while reason is None:
            logprobs = self.next_logprobs(call, ids)
            token_id, logprob = next(iter(logprobs.items()))
            ids = (*ids, token_id)
            tops = dict(list(logprobs.items())[: call.top_logprobs])
            token = GeneratedToken(token_id, text_of((token_id,)), logprob, token_id == END, tops)
            made.append(token)
            yield token
            if token_id == END:
                reason = "eos"
            elif len(ids) == call.max_tokens:
                reason = "length"
        yield Answer(
            text=text_of(ids[len(call.output) :]),
            tokens=tuple(made),
            finish_reason=reason,
            usage=Usage(num_output_tokens=len(made)),
            constraint_satisfied=None if call.constraint is None else True,
        )

    async def search(self, call: BeamsCall) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
        """The answer of a server."""
        group = _group(call)
        search = BeamSearch(group, _Texts()).run()
        try:
            asks = next(search)
            while True:
                asks = search.send([self._result(ask, call) for ask in asks])
        except StopIteration as stop:
            outcome: SearchOutcome = stop.value
        dropped = [
            BeamDropped(_states([place])[0], error.error if isinstance(error, _Refusal) else None)
            for place, error in outcome.dropped
        ]
        yield BeamsAnswer(
            finish_reason=outcome.reason.value,
            beams=_states(outcome.beams),
            candidates=None if outcome.candidates is None else _states(outcome.candidates),
            has_more=outcome.has_more,
            num_considered=group.num_considered,
            ended=_states(place for place, _ in outcome.ended),
            dropped=tuple(dropped),
        )

    def _result(self, ask: Ask, call: BeamsCall) -> AskResult:
        output = ask.beam.output_ids
        if isinstance(ask, CheckHole):
            return EndedHole(text_of(output))
        asked = call.holes[ask.beam.hole].call
        self.num_asked += 1
        if len(output) >= (asked.max_tokens or 99) or END in output:
            raise InvalidRequest("it has ended", field="output")
        try:
            logprobs = self.next_logprobs(replace(asked, sampling=call.sampling), output)
        except ConstraintRefused as error:
            return DeadEnd(_Refusal(error))
        tops = list(logprobs.items())[: 2 * call.width + 8]
        return NextTokens(tuple(tops), frozenset((END,)))

    async def score(self, call: ScoreCall) -> Scores:
        self.num_asked += 1
        return Scores(
            tuple(self.scored(as_text(call.prompt), each) for each in call.values), Usage()
        )

    def scored(self, prompt: str, value: str | Ids) -> Scored:
        ids = tuple(TOKENS.index(letter) for letter in cast("str", value))
        call = GenerateCall(prompt=prompt)
        each = [self.next_logprobs(call, ids[:place])[ids[place]] for place in range(len(ids))]
        return Scored(ids, tuple(each))


def _language_of(constraint: Constraint | None) -> frozenset[str] | None:
    if constraint is None:
        return None
    value = constraint.value
    return _language(constraint.type, "|".join(value) if isinstance(value, list) else str(value))


class Failing(ScriptedModel):
    """Fails in the middle of a hole."""

    def __init__(self, error: TandemError | None = None) -> None:
        super().__init__(in_turn())
        self._error = error or ServerFailed("it broke", "step_failed")

    async def generate(self, call: GenerateCall) -> Answer:
        await asyncio.sleep(0)
        raise self._error


class Silent(ScriptedModel):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__(in_turn())
        self.is_asked = asyncio.Event()

    async def generate(self, call: GenerateCall) -> Answer:
        self.is_asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError


def under_caret(error: QueryError) -> str:
    """What the caret of an error is under."""
    assert error.place is not None
    assert error.source is not None
    line = error.source.text.split("\n")[error.place.line - 1]
    return line[error.place.column - 1 : error.place.end_column - 1]
