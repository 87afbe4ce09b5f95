"""The corpus: kinds of documents, their shares, and rows of tokens packed from them.

A row is filled with whole documents (best fit, largest first), so hardly a position is wasted:

    | document <|end|> document <|end|> ... pad |      short rows of 256, some long ones of 1024
"""

from bisect import bisect_left, insort
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from random import Random

import numpy as np
from numpy.typing import NDArray

from models.training import (
    arithmetic,
    chat,
    dates,
    facts,
    odd_one_out,
    prose,
    records,
    search,
    stories,
)
from models.training.document import Document, Example, Part
from models.training.document import prose as as_prose

SHORT_LEN, LONG_LEN = 256, 1024
CHUNK_TOKENS = 400_000
FEW_SHOT, TO_LONG = 0.03, 0.12
_SYSTEMS = (
    "You are a helpful assistant.",
    "You are Pip.",
    "You are a friendly and helpful assistant. Answer briefly.",
    "Answer the question.",
    "Be short.",
    "You are a small language model that helps people.",
)

Encoder = Callable[[Sequence[str]], list[list[int]]]
"""Texts to token ids; special tokens in a text become themselves."""
Draw = Callable[[Random], Document]
Row = tuple[NDArray[np.int64], NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Kind:
    """A kind of document and its share of the corpus, by tokens."""

    name: str
    share: float
    draw: Draw


def _either(draw: Callable[[Random], Example], plain: float) -> Draw:
    """Examples in chat form, or with that probability in plain form, now and then few-shot."""

    def drawn(rng: Random) -> Document:
        example = draw(rng)
        if rng.random() >= plain:
            return _with_system(rng, example).as_chat()
        if rng.random() >= FEW_SHOT:
            return example.as_plain()
        shots = [draw(rng) for _ in range(rng.randint(1, 3))]
        shown = (s.plain_prompt() + s.raw_lead + s.answer_text for s in shots)
        return (Part("\n\n".join(shown) + "\n\n", 0.0), *example.as_plain())

    return drawn


def _with_system(rng: Random, example: Example) -> Example:
    """The example under a system message that changes nothing, in one chat of ten."""
    if example.system is not None or rng.random() >= 0.1:
        return example
    return replace(example, system=rng.choice(_SYSTEMS))


def _story(rng: Random) -> Document:
    if rng.random() < 0.5:
        return stories.draw(rng, "train").as_chat()
    return as_prose(stories.tell(rng, "train"))


KINDS = (
    Kind("stories", 0.08, _story),
    Kind("prose", 0.08, lambda rng: as_prose(prose.write(rng, "train"))),
    Kind("talk", 0.02, _either(chat.draw_talk, 0.15)),
    Kind("unknown", 0.05, _either(lambda rng: chat.draw_unknown(rng, "train"), 0.25)),
    Kind("say", 0.02, _either(lambda rng: chat.draw_say(rng, "train"), 0.2)),
    Kind("list", 0.01, _either(lambda rng: chat.draw_list(rng, "train"), 0.2)),
    Kind("facts", 0.05, _either(lambda rng: facts.draw(rng, "train"), 0.4)),
    Kind("about", 0.01, _either(facts.draw_about, 0.3)),
    Kind("portrait", 0.01, facts.draw_portrait),
    Kind("arithmetic", 0.10, _either(lambda rng: arithmetic.draw(rng, "train"), 0.5)),
    Kind("odd one out", 0.08, _either(lambda rng: odd_one_out.draw(rng, "train"), 0.5)),
    Kind("date", 0.08, _either(lambda rng: dates.draw_direct(rng, "train"), 0.5)),
    Kind("date options", 0.17, _either(lambda rng: dates.draw_choice(rng, "train"), 0.5)),
    Kind("date drill", 0.11, lambda rng: dates.draw_drill(rng, "train")),
    Kind("date lookup", 0.10, _either(lambda rng: dates.draw_lookup(rng, "train"), 0.5)),
    Kind("json", 0.10, _either(lambda rng: records.draw(rng, "train"), 0.5)),
    Kind("search", 0.14, _either(lambda rng: search.draw(rng, "train"), 0.5)),
)


@dataclass(frozen=True, slots=True)
class Encoded:
    """A document as token ids with the weight of each in the loss."""

    ids: tuple[int, ...]
    weights: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class Rows:
    """Packed rows: one id and one weight per position; row_len + 1 positions, since rows shift."""

    ids: NDArray[np.int64]
    weights: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.ids)


def encode(documents: Sequence[Document], encoder: Encoder) -> list[Encoded]:
    """Each part is tokenized apart, as a prompt will be when the model is used."""
    ids = iter(encoder([part.text for document in documents for part in document]))
    encoded = []
    for document in documents:
        parts = [(next(ids), part.weight) for part in document]
        encoded.append(
            Encoded(
                tuple(token for tokens, _ in parts for token in tokens),
                tuple(weight for tokens, weight in parts for _ in tokens),
            )
        )
    return encoded


def draw_chunk(rng: Random, encoder: Encoder, num_tokens: int = CHUNK_TOKENS) -> list[Encoded]:
    """Documents of about that many tokens, each kind by its share of the tokens."""
    total = sum(kind.share for kind in KINDS)
    chunk: list[Encoded] = []
    for kind in KINDS:
        wanted = num_tokens * kind.share / total
        while wanted > 0:
            encoded = encode([kind.draw(rng) for _ in range(64)], encoder)
            for document in encoded:
                if wanted <= 0:
                    break
                chunk.append(document)
                wanted -= len(document.ids)
    rng.shuffle(chunk)
    return [document for document in chunk if len(document.ids) <= LONG_LEN + 1]


def pack(rng: Random, documents: Sequence[Encoded], row_len: int, pad_id: int) -> Rows:
    """Best fit, largest document first; the order in a row and of the rows is random."""
    bins: list[list[Encoded]] = []
    free: list[tuple[int, int]] = []
    for document in sorted(documents, key=lambda d: -len(d.ids)):
        size = len(document.ids)
        at = bisect_left(free, (size, -1))
        space, number = free.pop(at) if at < len(free) else (row_len + 1, len(bins))
        if number == len(bins):
            bins.append([])
        bins[number].append(document)
        insort(free, (space - size, number))
    rng.shuffle(bins)
    ids = np.full((len(bins), row_len + 1), pad_id, np.int64)
    weights = np.zeros((len(bins), row_len + 1), np.float32)
    for row, members in enumerate(bins):
        rng.shuffle(members)
        line = [token for member in members for token in member.ids]
        ids[row, : len(line)] = line
        weights[row, : len(line)] = [weight for member in members for weight in member.weights]
    return Rows(ids, weights)


def split_by_len(rng: Random, chunk: Sequence[Encoded]) -> tuple[list[Encoded], list[Encoded]]:
    """Documents for the short rows, and for the long ones (all that are longer, some others)."""
    short: list[Encoded] = []
    long: list[Encoded] = []
    for document in chunk:
        is_long = len(document.ids) > SHORT_LEN + 1 or rng.random() < TO_LONG
        (long if is_long else short).append(document)
    return short, long


class RowStream:
    """Endless rows, short and long, drawn chunk by chunk. One per worker; owns its chunks."""

    def __init__(self, encoder: Encoder, pad_id: int, seed: str) -> None:
        self._encoder = encoder
        self._pad_id = pad_id
        self._seed = seed
        self._num_chunks = 0
        self._waiting: dict[int, deque[Row]] = {SHORT_LEN: deque(), LONG_LEN: deque()}

    def take(self, num_rows: int, row_len: int) -> Rows:
        """The next rows of that length (256 or 1024)."""
        waiting = self._waiting[row_len]
        while len(waiting) < num_rows:
            self._refill()
        rows = [waiting.popleft() for _ in range(num_rows)]
        return Rows(np.stack([ids for ids, _ in rows]), np.stack([weights for _, weights in rows]))

    def _refill(self) -> None:
        rng = Random(f"{self._seed}/{self._num_chunks}")
        self._num_chunks += 1
        short, long = split_by_len(rng, draw_chunk(rng, self._encoder))
        for documents, row_len in ((short, SHORT_LEN), (long, LONG_LEN)):
            rows = pack(rng, documents, row_len, self._pad_id)
            self._waiting[row_len].extend(zip(rows.ids, rows.weights, strict=True))
