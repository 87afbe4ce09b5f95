"""A Model in memory whose whole tree can be searched: four tokens, log-probabilities by a hash.

It keeps the contract of calls that go on with an output: masks leave what can still be completed in
the budget, and what has ended is refused.
"""

import math
from collections.abc import AsyncGenerator, Iterator, Sequence
from functools import cache
from itertools import product
from typing import cast
from zlib import crc32

from client.beams import BeamsAnswer, BeamsCall, BeamsReport
from client.calls import (
    Answer,
    Constraint,
    GenerateCall,
    GeneratedToken,
    ScoreCall,
    Scored,
    Scores,
    Usage,
)
from client.errors import ConstraintRefused, InvalidRequest
from constraints.where.evaluate import holds
from constraints.where.parser import parse
from tests.client.query.running.scripted_model import as_text
from tests.client.query.running.searching import searched

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


class TreeModel:
    """`seed` makes another model. `num_asked` counts tokens asked for, `num_searches` BEAMS."""

    def __init__(self, seed: int = 0) -> None:
        self._seed = seed
        self.num_asked = 0
        self.num_searches = 0

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

    async def generate(self, call: GenerateCall) -> Answer:
        async for part in self.stream(call):
            if isinstance(part, Answer):
                return part
        raise AssertionError

    @property
    def end_token_id(self) -> int:
        return END

    def next_tokens(self, call: GenerateCall, output: Ids) -> dict[int, float]:
        self.num_asked += 1
        if len(output) >= (call.max_tokens or 99) or END in output:
            raise InvalidRequest("it has ended", field="output")
        return self.next_logprobs(call, output)

    def text_of(self, output: Sequence[int]) -> str:
        return text_of(output)

    async def search(self, call: BeamsCall) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
        self.num_searches += 1
        async for part in searched(self, call):
            yield part

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
