"""Arithmetic: decode in chunks, look for a term, cut there, compute, go on."""

import re

from bench.paper.cases import Case
from bench.paper.generating import Generator
from bench.paper.tools import calculate

FOUND = re.compile(r"(?P<term>[^\s=]+)=| So the answer is (?P<answer>[^.]*)\.")
MAX_CALCULATIONS = 6
MAX_CHARS = 300


async def solve(model: Generator, case: Case, chunk: int) -> str:
    """What stands behind each `So the answer is`; empty if nothing does."""
    prompt = case.examples
    answers = []
    for question in case.questions:
        prompt += f"Q: {question}\nA:"
        answer = None
        for _ in range(MAX_CALCULATIONS):
            text = ""
            found = None
            while found is None:
                made = await model.generate(prompt + text, chunk)
                text += made.text
                found = FOUND.search(text)
                if found is None and (made.is_ended or len(text) > MAX_CHARS):
                    return ""
            prompt += text[: found.end()]
            answer = found["answer"]
            if answer is not None:
                break
            result = calculate(found["term"])
            prompt += f"<<{found['term']}={result}>>{result}"
        answers.append(answer or "")
        prompt += "\n\n"
    return ", ".join(answers)
