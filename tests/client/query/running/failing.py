"""Models that fail a program in the middle of a hole, and what it sees meanwhile."""

import asyncio

from client.calls import Answer, GenerateCall
from client.errors import ServerFailed
from client.query import query
from tests.client.query.running.scripted_model import ScriptedModel, in_turn

# Programs that ask for X again whenever it failed; so far a mistake is told, and no test hangs.
MOST = 99


class Failing(ScriptedModel):
    """Fails in the middle of a hole."""

    def __init__(self) -> None:
        super().__init__(in_turn())

    async def generate(self, call: GenerateCall) -> Answer:
        await asyncio.sleep(0)
        raise ServerFailed("it broke", "step_failed")


class Silent(ScriptedModel):
    """Never answers."""

    def __init__(self) -> None:
        super().__init__(in_turn())
        self.is_asked = asyncio.Event()

    async def generate(self, call: GenerateCall) -> Answer:
        self.is_asked.set()
        await asyncio.get_running_loop().create_future()
        raise AssertionError


class Known:
    """What a program sees. `told` are what its handlers and its ends say."""

    def __init__(self) -> None:
        self.num_rounds = 0
        self.told: list[str] = []

    def again(self) -> bool:
        self.num_rounds += 1
        return self.num_rounds < MOST

    def tell(self, what: str) -> None:
        self.told.append(what)


@query
async def inner():  # type: ignore[no-untyped-def]
    """
    while True:
        try:
            "[X]"
            return X
        except Exception:
            raise
    """


def names_of(known: Known) -> dict[str, object]:
    return {"known": known, "inner": inner}
