"""A branch of a best-first search whose budget is spent: to its trace's end, token by token."""

from dataclasses import replace

from client.errors import InvalidRequest
from client.query.running.best_nodes import Filled, Open
from client.query.running.best_requests import Requests
from client.query.running.branches import DEAD, Branch, Finished, Landed, behind, landed
from client.query.running.decoding import Asker, HoleAnswer

_WHOLE = 1 << 20


class Completion:
    """Takes branches to the ends of their traces by the most probable tokens."""

    def __init__(self, asker: Asker, requests: Requests) -> None:
        self._asker = asker
        self._requests = requests

    async def completed(self, node: Open | Filled) -> Finished | None:
        """The trace with the most probable tokens from here on; None if it fails."""
        try:
            place = await self._place(node)
            while isinstance(place, Branch):
                place = await self._to_its_end(place)
        except DEAD as error:
            self._requests.failure = error
            return None
        return place

    async def _place(self, node: Open | Filled) -> Landed | None:
        """Where it stands; None: its text is not as it must be."""
        if isinstance(node, Filled):
            return await behind(node.branch, node.text, self._asker)
        return node.branch if node.ended_by is None else await self._judged(node)

    async def _judged(self, node: Open) -> Landed | None:
        """Where it comes to, now that its hole has ended."""
        for told in await self._requests.search([node], 1):
            if isinstance(told, Filled):
                return await behind(told.branch, told.text, self._asker)
        return None

    async def _to_its_end(self, branch: Branch) -> Landed | None:
        """The branch's hole with the most probable tokens."""
        sampling = replace(branch.at.call.sampling, temperature=0.0)
        call = replace(branch.at.call, sampling=sampling, output=branch.output, num_steps=_WHOLE)
        try:
            answer = await self._asker.generate(branch.at, call)
        except InvalidRequest as error:
            if error.field != "output" or not branch.output:
                raise
            return await self._judged(Open(branch, ended_by="length"))
        made = HoleAnswer(
            text=answer.standing.text + answer.text,
            logprob=branch.output_logprob + answer.logprob,
            num_tokens=len(branch.output) + sum(not token.is_end for token in answer.tokens),
        )
        return await landed(
            await branch.at.answered(made),
            self._asker,
            branch.logprob + answer.logprob,
            branch.num_tokens + len(answer.tokens),
        )
