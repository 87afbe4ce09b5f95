"""Date understanding: reason in chunks, then score each letter."""

from bench.paper.baselines.chunks import decode_until
from bench.paper.cases import Case
from bench.paper.generating import Generator

STOPS = ("\n", " So")
MAX_WORDS = 60


async def solve(model: Generator, case: Case, chunk: int) -> str:
    """The letter that is most probable behind the reasoning."""
    prompt = f"Q: {case.question}\nA:"
    prompt += await decode_until(model, prompt, STOPS, chunk, MAX_WORDS)
    prompt += " So the answer is"
    scores = {}
    for option in case.options:
        scores[option] = await model.score(prompt, f" {option}")
    return max(scores, key=lambda option: scores[option])
