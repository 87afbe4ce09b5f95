"""The programs that lmql runs in `bench.lmql_server`, as texts of its language.

    short           four words and one hole: what a server costs beside its model
    few-shot        Figure 10 of lmql's paper: worked examples, reasoning, an answer out of a list
    distribution    the same, but the answer is a distribution over the list

The first two with any of lmql's decoders. The queries of a few-shot round share their examples, and
no other round has the same ones: what a server remembers of them it has computed within the round.
"""

import json
from collections.abc import Sequence
from dataclasses import dataclass
from random import Random

from tokenizers import Tokenizer

from models.training import odd_one_out
from models.training.document import Split

_SHORT = (
    "Once there was a fox",
    "Once there was an old man",
    "Once there was a goat",
    "Once there was a town",
    "The weather was cold",
    "My friend has a cat",
    "Once there was a bear",
    "Once there was a girl",
)
_MAX_WORDS = 40


@dataclass(frozen=True, slots=True, kw_only=True)
class FewShot:
    """What queries with examples have in common.

    decoder:       as lmql writes it
    examples_len:  tokens of the examples, at least; the last one stands whole
    reasoning_len: tokens of a reasoning; None: until the model ends it, which one that was never
        trained does not
    distributes:   whether the answer is a distribution
    """

    decoder: str = "argmax"
    examples_len: int = 600
    reasoning_len: int | None = None
    distributes: bool = False


def short(number: int, num_tokens: int, decoder: str = "argmax") -> list[str]:
    """So many queries, of so many tokens each."""
    prompts = (_SHORT[index % len(_SHORT)] for index in range(number))
    return [f'{decoder} "{each}[TEXT]" where len(TOKENS(TEXT)) < {num_tokens}' for each in prompts]


def few_shot(number: int, tokenizer: Tokenizer, seed: str, asked: FewShot) -> list[str]:
    """So many questions behind the same examples."""
    rng = Random(seed)
    examples = ""
    while len(tokenizer.encode(examples).ids) < asked.examples_len:
        question, _, answer = _drawn(rng, "train")
        examples += f"{question}{answer}\n\n"
    return [_program(asked, examples, *_drawn(rng, "test")) for _ in range(number)]


def _drawn(rng: Random, split: Split) -> tuple[str, Sequence[str], str]:
    """A question as a prompt, the words to choose from, and the right text behind it."""
    example = odd_one_out.draw(rng, split)
    words = example.question.rstrip(".?").rpartition(": ")[2].split(", ")
    return example.plain_prompt(), words, example.raw_lead + example.answer_text


def _program(asked: FewShot, examples: str, question: str, words: Sequence[str], _: str) -> str:
    prompt = json.dumps(f"{examples}{question}[REASONING] So the odd one is[ANSWER]")
    answers = json.dumps([f" {word}" for word in words])
    bounds = f'STOPS_BEFORE(REASONING, " So") and len(WORDS(REASONING)) < {_MAX_WORDS}'
    if asked.reasoning_len is not None:
        bounds += f" and len(TOKENS(REASONING)) < {asked.reasoning_len}"
    decided = "distribution" if asked.distributes else "and"
    return f"{asked.decoder} {prompt} where {bounds} {decided} ANSWER in {answers}"
