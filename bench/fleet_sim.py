"""Which replica should get a request? Policies compared on simulated replicas of one model.

    python -m bench.fleet_sim [--svg FILE] [--replicas 8] [--rates 4,8,12,16,20,24] [--seeds 1]

The two policies that know prompts are those of `fleet/replicas.py`, as a front runs them. Replicas
are simulated: a step computes a token of each running sequence and up to 2048 tokens of prompts,
less what is in the prefix cache. It costs what an H100 took for Llama 3 8B
(bench/results/gpu-check.json). The load: system prompts of 6144 tokens, 12 for each replica and
asked for by Zipf's law, users whose conversations grow by 8 turns, answers of 160 tokens.

Prints a line of JSON for each policy and rate (requests a second for each replica): milliseconds to
the first token, what share of the prompts was cached, and which of the tokens that were asked for
came by requests whose first token came within 0.5 s. The first quarter warms up.
"""

import heapq
import json
import random
import statistics
import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass, field
from itertools import count, cycle, takewhile
from pathlib import Path
from typing import Protocol

from bench.chart import Line, lines
from bench.command_line import parser_of, progress
from fleet.replicas import PIECE_LEN, Replicas

# Seconds of a step, of each token of a prompt in it and of each sequence that it decodes.
_STEP_S = 0.0064
_PROMPT_TOKEN_S = 0.0000221
_ROW_S = 0.000059
_MAX_PREFILL_TOKENS = 2048
_MAX_ROWS = 128
# The front's pieces are of 256 bytes, some 4 for each token; a cache holds 416 000 tokens.
_PIECE_TOKENS = PIECE_LEN // 4
_CACHE_PIECES = 6500
_SYSTEM_LEN = 6144
_NUM_TURNS = 8
_MEAN_MESSAGE_LEN = 128
_MEAN_ANSWER_LEN = 160
_GOOD_S = 0.5


@dataclass(slots=True)
class Asked:
    """A request: what the load says of it, and what became of it. Lengths in tokens."""

    arrives_s: float
    prompt_len: int
    output_len: int
    # Of the prompt; of the prompt and its answer.
    pieces: list[bytes]
    all_pieces: list[bytes]
    num_cached: int | None = None
    num_missing: int = 0
    num_written: int = 0
    first_s: float | None = None

    @property
    def wait_s(self) -> float:
        """Until the first token; infinite where there was none."""
        return float("inf") if self.first_s is None else self.first_s - self.arrives_s

    @property
    def is_good(self) -> bool:
        """Whether it was answered in full, and soon."""
        return self.num_written == self.output_len and self.wait_s <= _GOOD_S


@dataclass(slots=True)
class SimulatedReplica:
    """Owner of a queue, of what runs, and of a prefix cache that forgets the least recent."""

    cache: OrderedDict[bytes, None] = field(default_factory=OrderedDict)
    queue: deque[Asked] = field(default_factory=deque)
    running: list[Asked] = field(default_factory=list)
    begun: list[Asked] = field(default_factory=list)
    is_busy: bool = False

    def step_s(self) -> float | None:
        """Begins a step; how long it takes, or None where there is nothing to do."""
        num_rows = len(self.running)
        num_left = _MAX_PREFILL_TOKENS
        self.begun = []
        while self.queue and num_left and num_rows + len(self.begun) < _MAX_ROWS:
            asked = self.queue[0]
            if asked.num_cached is None:
                hits = sum(1 for _ in takewhile(self.cache.__contains__, asked.pieces))
                # The last token is always computed.
                asked.num_cached = min(hits * _PIECE_TOKENS, asked.prompt_len - 1)
                asked.num_missing = asked.prompt_len - asked.num_cached
            num_now = min(num_left, asked.num_missing)
            asked.num_missing -= num_now
            num_left -= num_now
            if asked.num_missing:
                break
            self.begun.append(self.queue.popleft())
        num_new = _MAX_PREFILL_TOKENS - num_left
        if not num_rows and not num_new:
            return None
        return _STEP_S + _PROMPT_TOKEN_S * num_new + _ROW_S * num_rows

    def end_step(self, now_s: float) -> list[Asked]:
        """A token for each that ran or began; those that have all."""
        for asked in self.begun:
            asked.first_s = now_s
            self._keep(asked.pieces)
        self.running += self.begun
        for asked in self.running:
            asked.num_written += 1
        ended = [asked for asked in self.running if asked.num_written == asked.output_len]
        self.running = [asked for asked in self.running if asked.num_written < asked.output_len]
        for asked in ended:
            self._keep(asked.all_pieces)
        return ended

    def _keep(self, pieces: Sequence[bytes]) -> None:
        for piece in reversed(pieces):
            self.cache[piece] = None
            self.cache.move_to_end(piece)
        while len(self.cache) > _CACHE_PIECES:
            self.cache.popitem(last=False)


class Policy(Protocol):
    """Chooses a replica by its number."""

    def begin(self, asked: Asked) -> int:
        """Where it goes."""

    def end(self, number: int) -> None:
        """One of that replica's requests has ended."""


class RoundRobin:
    """One after the other."""

    def __init__(self, num_replicas: int) -> None:
        self._turns = cycle(range(num_replicas))

    def begin(self, asked: Asked) -> int:
        """The next one."""
        return next(self._turns)

    def end(self, number: int) -> None:
        """It does not count."""


class LeastLoaded:
    """That with the fewest requests in flight, drawn among equals."""

    def __init__(self, num_replicas: int, draw: random.Random) -> None:
        self._loads = [0] * num_replicas
        self._draw = draw

    def begin(self, asked: Asked) -> int:
        """Counts the request."""
        number = min(
            range(len(self._loads)), key=lambda each: (self._loads[each], self._draw.random())
        )
        self._loads[number] += 1
        return number

    def end(self, number: int) -> None:
        """Counts it no more."""
        self._loads[number] -= 1


class OfTheFront:
    """The front's own. `max_known`: 0 leaves the ring alone."""

    def __init__(self, num_replicas: int, max_known: int | None = None) -> None:
        names = [f"replica-{number}" for number in range(num_replicas)]
        self._numbers = {name: number for number, name in enumerate(names)}
        self._names = names
        self._replicas = Replicas(names)
        if max_known is not None:
            self._replicas = Replicas(names, max_known=max_known)
        for name in names:
            self._replicas.admit(name)

    def begin(self, asked: Asked) -> int:
        """As a front does."""
        pick = self._replicas.pick(asked.pieces)
        assert pick is not None
        self._replicas.begin(pick.name, asked.pieces)
        return self._numbers[pick.name]

    def end(self, number: int) -> None:
        """As a front does."""
        self._replicas.end(self._names[number])


def policies_of(num_replicas: int, draw: random.Random) -> dict[str, Policy]:
    """By the names that the plot has."""
    return {
        "longest, else ring": OfTheFront(num_replicas),
        "ring of prefixes": OfTheFront(num_replicas, max_known=0),
        "least loaded": LeastLoaded(num_replicas, draw),
        "round robin": RoundRobin(num_replicas),
    }


def load_of(num_replicas: int, rate: float, num_requests: int, seed: int) -> list[Asked]:
    """Requests of users in the order in which they arrive, `rate` a second in all."""
    draw = random.Random(seed)
    num_groups = 12 * num_replicas + 8
    num_users = 24 * num_replicas + 8
    weights = [1 / number**0.8 for number in range(1, num_groups + 1)]
    groups = draw.choices(range(num_groups), weights, k=num_users)
    history_lens = [0] * num_users
    turns = [0] * num_users
    now_s = 0.0
    requests = []
    for _ in range(num_requests):
        now_s += draw.expovariate(rate)
        user = draw.randrange(num_users)
        message_len = 1 + int(draw.expovariate(1 / _MEAN_MESSAGE_LEN))
        output_len = max(8, min(4 * _MEAN_ANSWER_LEN, int(draw.expovariate(1 / _MEAN_ANSWER_LEN))))
        prompt_len = _SYSTEM_LEN + history_lens[user] + message_len
        conversation = f"{user}/{turns[user] // _NUM_TURNS}"
        pieces = [
            f"{groups[user]}/{place}".encode()
            if (place + 1) * _PIECE_TOKENS <= _SYSTEM_LEN
            else f"{groups[user]}/{conversation}/{place}".encode()
            for place in range((prompt_len + output_len) // _PIECE_TOKENS)
        ]
        begin = pieces[: prompt_len // _PIECE_TOKENS]
        requests.append(Asked(now_s, prompt_len, output_len, begin, pieces))
        turns[user] += 1
        is_over = turns[user] % _NUM_TURNS == 0
        history_lens[user] = 0 if is_over else history_lens[user] + message_len + output_len
    return requests


@dataclass(frozen=True, slots=True)
class Found:
    """The figures of a policy at a rate; `good_share` of the tokens that were asked for."""

    policy: str
    num_replicas: int
    rate: float
    ttft_ms_p50: float
    ttft_ms_p99: float
    cached_share: float
    good_share: float


def simulate(policy: Policy, num_replicas: int, requests: Sequence[Asked]) -> None:
    """Serves the requests; what becomes of them is written into them."""
    replicas = [SimulatedReplica() for _ in range(num_replicas)]
    order = count()
    arrivals = ((asked.arrives_s, next(order), -1, asked) for asked in requests)
    # Arrivals, and ends of steps by the number of their replica.
    events: list[tuple[float, int, int, Asked | None]] = list(arrivals)
    heapq.heapify(events)
    # Whoever has not begun by then is late by any measure.
    over_s = requests[-1].arrives_s * 1.5 + 30
    while events and events[0][0] < over_s:
        now_s, _, number, asked = heapq.heappop(events)
        if asked is not None:
            number = policy.begin(asked)
            replicas[number].queue.append(asked)
            if replicas[number].is_busy:
                continue
        else:
            for _ in replicas[number].end_step(now_s):
                policy.end(number)
        takes_s = replicas[number].step_s()
        replicas[number].is_busy = takes_s is not None
        if takes_s is not None:
            heapq.heappush(events, (now_s + takes_s, next(order), number, None))


def found_of(name: str, num_replicas: int, rate: float, served: Iterable[Asked]) -> Found:
    """The figures of requests that were served."""
    asked = list(served)
    waits_ms = sorted(min(each.wait_s, 1e4) * 1000 for each in asked)
    num_tokens = sum(each.output_len for each in asked)
    return Found(
        name,
        num_replicas,
        rate,
        ttft_ms_p50=round(statistics.median(waits_ms), 1),
        ttft_ms_p99=round(waits_ms[int(0.99 * (len(waits_ms) - 1))], 1),
        cached_share=round(statistics.mean((x.num_cached or 0) / x.prompt_len for x in asked), 3),
        good_share=round(sum(x.output_len for x in asked if x.is_good) / num_tokens, 3),
    )


def _compare(
    num_replicas: int, rates: Sequence[float], num_seeds: int, num_each: int
) -> Iterator[Found]:
    for rate in progress(rates, "rates"):
        served: dict[str, list[Asked]] = {}
        for seed in range(num_seeds):
            for name, policy in policies_of(num_replicas, random.Random(seed)).items():
                requests = load_of(num_replicas, rate * num_replicas, num_each * num_replicas, seed)
                simulate(policy, num_replicas, requests)
                warm_s = requests[-1].arrives_s / 4
                served.setdefault(name, [])
                served[name] += [asked for asked in requests if asked.arrives_s > warm_s]
        for name, requests in served.items():
            yield found_of(name, num_replicas, rate, requests)


def main(argv: Sequence[str]) -> int:
    """Answers the exit code."""
    parser = parser_of(__doc__)
    parser.add_argument("--replicas", type=int, default=8)
    parser.add_argument("--rates", default="4,8,12,16,20,24", help="a second for each replica")
    parser.add_argument("--seeds", type=int, default=1, help="loads for each rate")
    parser.add_argument("--requests", type=int, default=800, help="for each replica")
    parser.add_argument("--svg", type=Path, help="draw the first tokens' 99th percentiles")
    args = parser.parse_args(argv)
    found = []
    rates = [float(rate) for rate in args.rates.split(",")]
    for each in _compare(args.replicas, rates, args.seeds, args.requests):
        found.append(each)
        sys.stdout.write(json.dumps(asdict(each)) + "\n")
    if args.svg is not None:
        names = dict.fromkeys(each.policy for each in found)
        series = [
            Line(name, [(each.rate, each.ttft_ms_p99) for each in found if each.policy == name])
            for name in names
        ]
        title = f"{args.replicas} replicas, Llama 3 8B on H100: simulated"
        args.svg.write_text(
            lines(title, "requests a second for each", "ms to the first token, p99", series)
        )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
