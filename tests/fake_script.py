"""What a test has a `FakeShard` do: the script of its tokens, its constraints and its faults."""

from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from zlib import crc32

import grpc

from proto import generate_pb2 as pb
from tests.byte_tokenizer import EOS_ID, NUM_SPECIAL, byte_ids

Script = Callable[[Sequence[int]], int]
SMALL_LETTERS = range(NUM_SPECIAL + ord("a"), NUM_SPECIAL + ord("z") + 1)
# From a small letter's token to that of the capital.
CAPITAL = ord("A") - ord("a")


def letters(token_ids: Sequence[int]) -> int:
    """A small letter that depends on the whole prefix."""
    digest = crc32(b"".join(token_id.to_bytes(4, "little") for token_id in token_ids))
    return NUM_SPECIAL + ord("a") + digest % 26


def saying(text: str, prompt_len: int) -> Script:
    """`text` after any prompt of that length, then the end of the sequence."""
    ids = [*byte_ids(text), EOS_ID]

    def script(token_ids: Sequence[int]) -> int:
        return ids[min(len(token_ids) - prompt_len, len(ids) - 1)]

    return script


@dataclass
class Faults:
    """What a FakeShard is to do wrong, until the test takes it back."""

    delay_s: float = 0.0
    # Methods that never answer.
    hangs: set[str] = field(default_factory=set)
    # (method, code, details), each for the next call of that method.
    fails: deque[tuple[str, grpc.StatusCode, str]] = field(default_factory=deque)
    epoch_offset: int = 0
    # Rows that fail in the next step they take part in; None: every row.
    row_errors: dict[int | None, str] = field(default_factory=dict)
    # Texts of constraints that PrepareConstraint refuses, and with which words.
    refused_constraints: dict[str, str] = field(default_factory=dict)
    # Changes a step's answer on its way out.
    spoil: Callable[[pb.StepResponse], None] | None = None

    def fail_for_good(self, method: str, code: grpc.StatusCode, details: str) -> None:
        """A step fails, and so do those that replay its request, until the router gives it up."""
        self.fails.extend((each, code, details) for each in (method, "Prefill", "Prefill"))


@dataclass
class Followed:
    """How a FakeShard follows a constraint: any text will do, and it ends where the script ends it.

    `num_forced`: how many further tokens are forced after a prefix.
    """

    num_forced: Script = lambda _: 0
    satisfied: bool = True
