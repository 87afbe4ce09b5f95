"""Rows of tokens that show what a model reads: of the operator's texts, or of its own.

A file of texts has a JSON object a line, {"text": "..."} or {"messages": [...]}; the chat template
makes a text of messages.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from transformers import AutoTokenizer

from model_server.errors import ConfigRefused, ModelRefused
from model_server.executor.executor import PagedModel
from model_server.quantizing.rows import Rows

_NUM_ROWS = 128
_NUM_DRAWN_ROWS = 64  # what a model draws itself takes as long as what it is quantized by
_NUM_HELD_OUT = 16
_ROW_LEN = 256
# Of texts that are too short for all: a row in nine is held out, at least one.
_MIN_ROWS = 9


@dataclass(frozen=True, slots=True, eq=False)
class Calibration:
    """Rows [row_len] int64 of one length: `rows` to quantize by, `held_out` to judge by."""

    rows: list[Tensor]
    held_out: list[Tensor]

    @classmethod
    def of_texts(cls, path: Path, folder: Path, seed: int, max_len: int) -> "Calibration":
        """Of a file of texts, in an order by the seed, by the tokenizer of a model's folder.

        Raises ConfigRefused for the file, ModelRefused for the tokenizer.
        """
        texts = _Texts(path, folder).read()
        generator = torch.Generator().manual_seed(seed)
        shuffled = [texts[place] for place in torch.randperm(len(texts), generator=generator)]
        tokens = torch.tensor([token for text in shuffled for token in text], dtype=torch.int64)
        row_len = min(_ROW_LEN, max_len)
        rows = [row for row in tokens.split(row_len) if len(row) == row_len]
        if len(rows) < _MIN_ROWS:
            raise ConfigRefused(
                f"--calibration {str(path)!r}: has {len(tokens)} tokens, and must have"
                f" {_MIN_ROWS * row_len} at least"
            )
        num_held_out = min(_NUM_HELD_OUT, len(rows) // _MIN_ROWS)
        return cls(rows[num_held_out:][:_NUM_ROWS], rows[:num_held_out])

    @classmethod
    @torch.inference_mode()
    def drawn(cls, model: PagedModel, seed: int) -> "Calibration":
        """What the model writes behind a token of any kind, beyond all ends."""
        generator = torch.Generator().manual_seed(seed)
        num_rows = _NUM_DRAWN_ROWS + _NUM_HELD_OUT
        row_len = min(_ROW_LEN, model.max_position_embeddings)
        rows = Rows(model, num_rows, row_len)
        tokens = torch.randint(model.vocab_size, (num_rows, 1), generator=generator)
        while tokens.shape[1] < row_len:
            shares = rows.step(tokens[:, -1:].tolist()).float().softmax(-1)
            drawn = torch.multinomial(shares, 1, generator=generator)
            tokens = torch.cat((tokens, drawn), 1)
        return cls(list(tokens[_NUM_HELD_OUT:]), list(tokens[:_NUM_HELD_OUT]))


class _Texts:
    """The texts of a file as tokens."""

    def __init__(self, path: Path, folder: Path) -> None:
        self._path = path
        try:
            self._tokenizer: Any = AutoTokenizer.from_pretrained(folder, local_files_only=True)
        # Each kind of tokenizer fails in its own way.
        except Exception as error:
            brief = " ".join(str(error).split())[:400]
            raise ModelRefused(f"{folder}: its tokenizer cannot be read: {brief}") from error

    def read(self) -> list[list[int]]:
        """Raises ConfigRefused, with the line."""
        try:
            lines = self._path.read_text(encoding="utf-8").splitlines()
        except (OSError, ValueError) as error:
            raise ConfigRefused(f"--calibration {str(self._path)!r}: {error}") from error
        return [
            self._tokens(f"{self._path}:{number}", line)
            for number, line in enumerate(lines, 1)
            if line.strip()
        ]

    def _tokens(self, place: str, line: str) -> list[int]:
        try:
            content = json.loads(line)
        except ValueError as error:
            raise ConfigRefused(f"{place}: is not JSON: {error}") from error
        match content:
            case {"text": str(text)}:
                return list(self._tokenizer.encode(text))
            case {"messages": list(messages)}:
                return self._of_messages(place, messages)
        raise ConfigRefused(f'{place}: must be {{"text": "..."}} or {{"messages": [...]}}')

    def _of_messages(self, place: str, messages: list[Any]) -> list[int]:
        try:
            text = self._tokenizer.apply_chat_template(messages, tokenize=False)
        # Templates are programs of the models' makers.
        except Exception as error:
            raise ConfigRefused(f"{place}: the chat template refuses it: {error}") from error
        return list(self._tokenizer.encode(text, add_special_tokens=False))
