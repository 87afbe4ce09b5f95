"""Odd one out: reason in chunks, then score each word."""

from bench.paper.baselines.chunks import decode_until
from bench.paper.cases import Case
from bench.paper.generating import Generator

STOPS = ("\n", " So")
MAX_WORDS = 40


async def solve(model: Generator, case: Case, chunk: int) -> str:
    """The word that is most probable behind the reasoning."""
    prompt = f"Q: Pick the odd word out: {', '.join(case.options)}.\nA:"
    prompt += await decode_until(model, prompt, STOPS, chunk, MAX_WORDS)
    prompt += " So the odd one is"
    scores = {}
    for option in case.options:
        scores[option] = await model.score(prompt, f" {option}")
    return max(scores, key=lambda option: scores[option])
