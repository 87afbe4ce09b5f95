"""What a best-first search asks the server, and what that may cost."""

from collections.abc import Sequence

from client.beams import BestCall
from client.query.errors import QueryError
from client.query.running.best_nodes import Filled, Open, node_of
from client.query.running.branches import Finished, beam_hole, numbered
from client.query.running.decoding import Asker, AtHole

# What servers tell of alternatives to one token; those beyond are not looked at.
_MAX_WIDTH = 256


class Requests:
    """Owner of a search's budget: `num_left` branches may still be asked for their next tokens.

    `width` alternatives are asked for at first. `trusts_last`: holes that are told to be the last
    of their program are. `failure` is what was wrong with the last branch that came to nothing.
    """

    def __init__(self, asker: Asker, *, budget: int, width: int, trusts_last: bool) -> None:
        self._asker = asker
        self._num_alternatives = min(width, _MAX_WIDTH)
        self._trusts_last = trusts_last
        self.num_left = budget
        self.failure: QueryError | None = None

    def is_last(self, at: AtHole) -> bool:
        """Whether the server may take the hole's end for that of its trace."""
        return self._trusts_last and at.is_last

    async def search(
        self,
        opens: Sequence[Open],
        num_missing: int,
        ended: Sequence[Finished] = (),
        bound: float | None = None,
    ) -> Sequence[Open | Filled]:
        """What the server makes of these branches, for so many results."""
        ats = numbered([each.branch for each in opens])
        numbers = {id(at): number for number, at in enumerate(ats)}
        call = BestCall(
            k=num_missing,
            budget=max(self.num_left, 0),
            num_alternatives=self._num_alternatives,
            holes=tuple(beam_hole(at, is_last=self.is_last(at)) for at in ats),
            beams=tuple(each.state(numbers[id(each.branch.at)]) for each in opens),
            sampling=ats[0].call.sampling,
            ended=tuple(each.logprob for each in ended),
            bound=bound,
        )
        answer, failures = await self._asker.search(ats, call)
        if failures:
            self.failure = failures[-1]
        self.num_left -= answer.usage.num_output_tokens
        return [node_of(state, ats) for state in (*answer.ended, *answer.beams)]
