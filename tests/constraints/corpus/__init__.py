"""Schemas as they are met, and what is said of each.

zod.jsonl, pydantic.jsonl   what both make of the types in zod_types.mjs and pydantic_models.py
hand.jsonl                  written by hand after documentation: structured outputs, OpenAPI, ...
verdicts.txt                of each whether it is taken, with what notes, or why it is refused

`python -m tests.constraints.corpus` writes verdicts.txt and pydantic.jsonl anew, with `--zod` also
zod.jsonl, for which it needs npm.
"""
