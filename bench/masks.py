"""How long masks of `where` expressions take, and compiling them: one thread, one vocabulary.

    python -m bench.masks --tokenizer tokenizer.json [--rounds 20]

Without a file there, a byte-level BPE of 128 000 entries is trained first, on the text that Python
came with and on made-up words of other scripts (about two minutes), and written to it. Each
expression is compiled twice, the second time with everything shared that a server shares, and
followed along a text as far as it allows, with a budget of tokens and without: one mask before each
token. The worst mask is measured by the clock and by its thread's CPU time: on a busy machine the
clock includes other processes. Prints JSON, in milliseconds.
"""

import itertools
import json
import random
import statistics
import sys
import sysconfig
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from bench.command_line import parser_of
from constraints.token_trie import trie_of
from constraints.vocabulary import Vocabulary
from constraints.where.engine import WhereLanguage, compile_where
from constraints.where.parser import parse

# Seconds of one mask: by the clock, and of its thread.
_Took = tuple[float, float]

_VOCAB_SIZE = 128_000
_TRAINING_BYTES = 40_000_000
_SCRIPTS = ((0xE0, 0x17F), (0x391, 0x3C9), (0x410, 0x44F), (0x3041, 0x3096), (0x4E00, 0x56FF))
_END = "<|end|>"
_TEXT = (
    "The quick brown fox jumps over the lazy dog while seven wizards brew potions, and then the"
    " owner of the café said hello to everyone who had come in from the cold 雨 outside"
)
_FIVE = (
    'len(words(X)) < 40 and len(X) < 300 and "\\n" not in X and stops_at(X, ".")'
    ' and "Tweet" not in X'
)
_EXPRESSIONS = {
    "five terms": _FIVE,
    "one phrase": '"fox" in X',
    "words from and to": 'len(words(X)) > 2 and len(words(X)) < 40 and "fox" in X',
    "characters from and to": "len(X) > 100 and len(X) < 300 and len(words(X)) < 40",
    "high bounds": "len(X) < 10000 and len(words(X)) < 1000 and len(sentences(X)) < 100",
    "high bounds on both sides": "len(X) > 100 and len(X) < 10000",
    "tokens": 'len(tokens(X)) < 60 and len(words(X)) > 5 and stops_at(X, ".")',
    "list": "X in [" + ", ".join(f'"The quick {name}"' for name in range(1000)) + ', "The"]',
    "pattern": r'regex(X, r"[A-Z][^.\n]*") and len(words(X)) < 60',
    "or": '(len(words(X)) < 40 or "dog" in X) and "\\n" not in X and not stops_at(X, "zebra")',
}


def main() -> None:
    parser = parser_of(__doc__)
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    if not args.tokenizer.exists():
        _train(args.tokenizer)
    tokenizer = Tokenizer.from_file(str(args.tokenizer))
    end_id = tokenizer.token_to_id(_END)
    vocabulary = Vocabulary.load(args.tokenizer, None, () if end_id is None else (end_id,))
    began = time.perf_counter()
    trie_of(vocabulary)
    found: dict[str, Any] = {
        "vocab_size": len(vocabulary.tokens),
        "walk_ms": _ms(time.perf_counter() - began),
    }
    token_ids = tokenizer.encode(_TEXT).ids
    for name, written in _EXPRESSIONS.items():
        found[name] = _measured(written, vocabulary, token_ids, args.rounds)
        sys.stderr.write(f"{name}: {json.dumps(found[name])}\n")
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def _measured(
    written: str, vocabulary: Vocabulary, token_ids: list[int], rounds: int
) -> dict[str, float]:
    compile_s: list[_Took] = []
    for _ in range(2):
        began = time.perf_counter()
        began_cpu = time.thread_time()
        language = compile_where(parse(written), vocabulary)
        compile_s.append((time.perf_counter() - began, time.thread_time() - began_cpu))
    budget = len(token_ids) + 2
    free = [_masks_s(language, token_ids, max_len=None) for _ in range(rounds)]
    within = [_masks_s(language, token_ids, max_len=budget) for _ in range(rounds)]
    return {
        "compile_first_ms": _ms(compile_s[0][0]),
        "compile_ms": _ms(compile_s[1][0]),
        "compile_cpu_ms": _ms(compile_s[1][1]),
        "knows_distances": language.knows_distances,
        "num_masks": len(free[0]),
        **_spread("mask", free),
        **_spread("budget", within),
    }


def _spread(name: str, texts: list[list[_Took]]) -> dict[str, float]:
    """Of all texts, the first one included, in which places are seen for the first time."""
    every = list(itertools.chain(*texts))
    return {
        f"{name}_median_ms": _ms(statistics.median(wall for wall, _ in every)),
        f"{name}_worst_ms": _ms(max(wall for wall, _ in every)),
        f"{name}_worst_cpu_ms": _ms(max(cpu for _, cpu in every)),
    }


def _masks_s(language: WhereLanguage, token_ids: list[int], max_len: int | None) -> list[_Took]:
    """Seconds of the masks along a text, as far as the expression allows it."""
    matcher = language.matcher()
    row = np.zeros(language.vocabulary.num_words, dtype=np.int32)
    took = []
    for made_len, token_id in enumerate(token_ids):
        began = time.perf_counter()
        began_cpu = time.thread_time()
        matcher.fill_mask(row, None if max_len is None else max_len - made_len)
        took.append((time.perf_counter() - began, time.thread_time() - began_cpu))
        if not row[token_id // 32] >> token_id % 32 & 1:
            break
        matcher.advance(token_id)
    return took


def _ms(seconds: float) -> float:
    return round(seconds * 1000, 4)


def _train(path: Path) -> None:
    backend = Tokenizer(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=_VOCAB_SIZE,
        special_tokens=[_END],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_training_texts(), trainer)
    backend.save(str(path))


def _training_texts() -> Iterator[str]:
    left = _TRAINING_BYTES
    for folder in (sysconfig.get_path("stdlib"), sysconfig.get_path("purelib")):
        for path in sorted(Path(folder).rglob("*.py")):
            if left > 0:
                text = path.read_text(encoding="utf-8", errors="ignore")
                left -= len(text)
                yield text
    rng = random.Random(0)
    for first, last in _SCRIPTS * 20_000:
        yield " " + "".join(chr(rng.randint(first, last)) for _ in range(rng.randint(1, 5)))


if __name__ == "__main__":
    main()
