"""What the query runtime needs of a model, whoever provides it."""

from collections.abc import AsyncGenerator
from typing import Protocol, runtime_checkable

from client.beams import BeamsAnswer, BeamsCall, BeamsReport
from client.words import Answer, GenerateCall, ScoreCall, Scores, TokenMade


class Model(Protocol):
    """A served model. All methods raise the TandemErrors of `errors.py`.

    Any number of calls may be under way at once; the server batches them.
    """

    def stream(self, call: GenerateCall) -> AsyncGenerator[TokenMade | Answer, None]:
        """The tokens as they come, then the Answer. Closing it early cancels the request."""
        ...

    async def generate(self, call: GenerateCall) -> Answer:
        """The whole answer; cancelling the task cancels the request."""
        ...

    async def score(self, call: ScoreCall) -> Scores:
        """The log-probabilities of several continuations of one prompt."""
        ...


@runtime_checkable
class BeamModel(Protocol):
    """A Model that searches over tokens itself; the decoder `beam` needs one."""

    def search(self, call: BeamsCall) -> AsyncGenerator[BeamsReport | BeamsAnswer, None]:
        """A group of beams: reports, then the answer. Closing it early cancels the request."""
        ...
