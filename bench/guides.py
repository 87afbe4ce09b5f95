"""How long guides take: the first completion, the check of a token, a mask; one thread.

    python -m bench.guides --tokenizer tokenizer.json [--rounds 20]

Outputs are drawn uniformly from the masks, JSON with all the whitespace that is allowed, which
checks far more than a model would ask for. `start` is a constraint's first request, the rest of the
compiler aside: its first completion, found and checked. Prints JSON, in microseconds of computing
time, which does not depend on what else the machine does.
"""

import argparse
import json
import random
import sys
import time
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer

from constraints.bitmask import allowed_ids
from constraints.compiler import Compiler
from constraints.guide import Guide
from constraints.spec import Budget, ConstraintSpec, Kind, StopRule
from constraints.vocabulary import Vocabulary

_STRING, _INTEGER = {"type": "string"}, {"type": "integer"}
_SCHEMAS: dict[str, Any] = {
    "json, 3 properties": {"name": _STRING, "age": _INTEGER, "ok": {"type": "boolean"}},
    "json, 20 properties": {
        f"property_{index}": (
            _STRING,
            _INTEGER,
            {"type": "array", "items": _STRING, "minItems": 1},
            {"enum": ["red", "green", "blue"]},
        )[index % 4]
        for index in range(20)
    },
    "json, formats": {
        "id": {"type": "string", "format": "uuid"},
        "at": {"type": "string", "format": "date-time"},
        "mail": {"type": "string", "format": "email"},
    },
    "json, nested": {
        "items": {
            "type": "array",
            "minItems": 2,
            "items": {
                "type": "object",
                "properties": {"x": _INTEGER, "y": {"anyOf": [_STRING, {"type": "null"}]}},
                "required": ["x", "y"],
            },
        }
    },
}
_NO_STOPS = StopRule()
_STOPS = StopRule(("\n\n", "User:", "the end"), kept=False)


def main() -> None:
    """Measure, and print what was found."""
    parser = argparse.ArgumentParser(prog="python -m bench.guides", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("--tokenizer", type=Path, required=True)
    parser.add_argument("--end", default="<|end|>", help="the token that ends an output")
    parser.add_argument("--rounds", type=int, default=20)
    args = parser.parse_args()
    end_id = Tokenizer.from_file(str(args.tokenizer)).token_to_id(args.end)
    if end_id is None:
        parser.error(f"no token {args.end}")
    vocabulary = Vocabulary.load(args.tokenizer, None, (end_id,))
    specs = {
        name: ConstraintSpec(Kind.JSON_SCHEMA, json.dumps(_closed(properties)))
        for name, properties in _SCHEMAS.items()
    }
    specs["regex"] = ConstraintSpec(Kind.REGEX, r"[A-Z][a-z]+( [a-z]+){3,30}\.")
    specs["lark"] = ConstraintSpec(
        Kind.LARK, 'start: term (("+" | "-") term)*\nterm: /[0-9]+/ | "(" start ")"\n'
    )
    found: dict[str, Any] = {"vocab_size": len(vocabulary.tokens)}
    for name, spec in specs.items():
        found[name] = _measured(spec, vocabulary, _NO_STOPS, args.rounds)
        found[f"{name}, stops"] = _measured(spec, vocabulary, _STOPS, args.rounds)
        sys.stderr.write(f"{name}: {json.dumps(found[name])}\n")
    sys.stdout.write(json.dumps(found, indent=2) + "\n")


def _closed(properties: dict[str, Any]) -> dict[str, Any]:
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def _measured(
    spec: ConstraintSpec, vocabulary: Vocabulary, stops: StopRule, rounds: int
) -> dict[str, float]:
    compile_s, start_s, check_s, fill_s = [], [], [], []
    for seed in range(rounds):
        compiler = Compiler(vocabulary)  # nothing is cached
        began = time.thread_time()
        language = compiler.compile(spec)
        compiled = time.thread_time()
        guide = Guide(language, vocabulary, Budget(400), stops)
        start_s.append(time.thread_time() - compiled)
        compile_s.append(compiled - began)
        checks, fills = _followed(guide, vocabulary, random.Random(seed))
        check_s += checks
        fill_s += fills
    return {
        **_spread("compile", compile_s),
        **_spread("start", start_s),
        **_spread("check", check_s),
        **_spread("fill", fill_s),
        "num_checks": len(check_s),
    }


def _followed(
    guide: Guide, vocabulary: Vocabulary, rng: random.Random
) -> tuple[list[float], list[float]]:
    """Seconds of each check and fill of one output."""
    row = np.zeros(vocabulary.num_words, dtype=np.int32)
    check_s: list[float] = []
    fill_s: list[float] = []
    guide.take_forced()
    while not guide.is_over and len(fill_s) < 60:
        began = time.thread_time()
        guide.fill(row)
        fill_s.append(time.thread_time() - began)
        token_id = rng.choice(allowed_ids(row).tolist())
        began = time.thread_time()
        is_good = guide.check(token_id)
        check_s.append(time.thread_time() - began)
        known = token_id if is_good else guide.witness_token()
        if known is None or known in vocabulary.end_ids:
            break
        guide.advance(known)
        guide.take_forced()
    return check_s, fill_s


def _spread(name: str, took_s: list[float]) -> dict[str, float]:
    ordered = sorted(took_s)
    return {
        f"{name}_p{share}_us": round(
            ordered[min(len(ordered) - 1, len(ordered) * share // 100)] * 1e6, 1
        )
        for share in (50, 99)
    }


if __name__ == "__main__":
    main()
