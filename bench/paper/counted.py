"""A Model that writes down what is asked of it, in front of another one."""

from collections.abc import AsyncGenerator
from contextlib import aclosing

from tokenizers import Tokenizer

from bench.paper.counting import Generated, Request, ScoredOptions
from client.model import Model
from client.words import Answer, GenerateCall, ScoreCall, Scores, TokenMade


class CountedModel:
    """Owner of `requests`: one for each call that was answered, in the order of the answers."""

    def __init__(self, model: Model, tokenizer: Tokenizer) -> None:
        self._model = model
        self._tokenizer = tokenizer
        self.requests: list[Request] = []

    async def stream(self, call: GenerateCall) -> AsyncGenerator[TokenMade | Answer, None]:
        async with aclosing(self._model.stream(call)) as stream:
            async for part in stream:
                if isinstance(part, Answer):
                    self._book(part)
                yield part

    async def generate(self, call: GenerateCall) -> Answer:
        answer = await self._model.generate(call)
        self._book(answer)
        return answer

    async def score(self, call: ScoreCall) -> Scores:
        scores = await self._model.score(call)
        assert isinstance(call.prompt, str)
        self.requests.append(
            ScoredOptions(
                prompt_len=len(self._tokenizer.encode(call.prompt).ids),
                option_lens=tuple(len(value.token_ids) for value in scores.values),
            )
        )
        return scores

    def _book(self, answer: Answer) -> None:
        self.requests.append(
            Generated(
                prompt_len=answer.usage.num_prompt_tokens,
                output_len=answer.usage.num_output_tokens,
                kept_len=len(self._tokenizer.encode(answer.text).ids),
            )
        )
