"""Greedy answers of many prompts at once, with tools that write parts of the answer.

A tool sees the text so far and may put words in: the calculator the result of `<<3+4=`, the search
the observation after `Act 2: Search '...'`. Its tokens are fed to the model like its own.
"""

import re
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from transformers import DynamicCache, PreTrainedTokenizerFast, Qwen3ForCausalLM

from models.training import arithmetic, search

Tool = Callable[[str], str | None]

_SUM = re.compile(r"<<(\d+)([-+*/])(\d+)=$")
_ACT = re.compile(r"Act (\d+): Search '([^'\n]*)'\n$")


@dataclass(frozen=True, slots=True)
class Answer:
    """What was written, and whether the model itself ended it."""

    text: str
    is_ended: bool


def calculator(text: str) -> str | None:
    """The result and the closing mark, where a sum has just been opened."""
    found = _SUM.search(text)
    if found is None:
        return None
    result = arithmetic.compute(int(found[1]), found[2], int(found[3]))
    return f"{'?' if result is None else result}>>"


def searcher(pages: tuple[tuple[str, str], ...]) -> Tool:
    """A search over those pages."""

    def run(text: str) -> str | None:
        found = _ACT.search(text)
        if found is None:
            return None
        return f"Obs {found[1]}: {search.look_up(pages, found[2])}\n"

    return run


class _Row:
    """One answer in the making."""

    def __init__(self, tokenizer: PreTrainedTokenizerFast, tool: Tool | None) -> None:
        self._tokenizer, self._tool = tokenizer, tool
        self._ids: list[int] = []
        self._given: deque[int] = deque()
        self.is_ended = False

    @property
    def text(self) -> str:
        return str(self._tokenizer.decode(self._ids))

    def add(self, chosen: int) -> int:
        """Takes the model's token, or the tool's instead; answers what the model reads next."""
        if self.is_ended:
            return chosen
        token = self._given.popleft() if self._given else chosen
        if token == self._tokenizer.eos_token_id:
            self.is_ended = True
            return token
        self._ids.append(token)
        if self._tool is not None and not self._given:
            put_in = self._tool(self.text)
            if put_in is not None:
                self._given.extend(self._tokenizer.encode(put_in))
        return token


def _left_padded(prompts: list[list[int]], pad_id: int) -> tuple[Tensor, Tensor]:
    """ids and mask, both [num_prompts, longest]."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[pad_id] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    return ids, mask


@torch.inference_mode()
def answer_all(
    model: Qwen3ForCausalLM,
    tokenizer: PreTrainedTokenizerFast,
    prompts: Sequence[str],
    tools: Sequence[Tool | None],
    max_new_tokens: int = 320,
) -> list[Answer]:
    """Greedy answers, one per prompt; `tools[i]` writes into answer i."""
    encoded = [list(tokenizer.encode(prompt)) for prompt in prompts]
    ids, mask = _left_padded(encoded, int(tokenizer.pad_token_id))
    positions = (mask.cumsum(1) - 1).clamp(min=0)
    rows = [_Row(tokenizer, tool) for tool in tools]
    cache = DynamicCache()
    for _ in range(max_new_tokens):
        logits = model(
            input_ids=ids,
            attention_mask=mask,
            position_ids=positions,
            past_key_values=cache,
            use_cache=True,
            logits_to_keep=1,
        ).logits  # [num_prompts, 1, vocab]
        chosen = logits[:, -1].argmax(-1).tolist()
        ids = torch.tensor([[row.add(token)] for row, token in zip(rows, chosen, strict=True)])
        if all(row.is_ended for row in rows):
            break
        mask = torch.cat([mask, torch.ones_like(mask[:, :1])], 1)
        positions = positions[:, -1:] + 1
    return [Answer(row.text, row.is_ended) for row in rows]
