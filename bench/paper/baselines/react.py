"""ReAct: decode in chunks, look for a whole action, cut there, search, go on."""

import re

from bench.paper.cases import Case
from bench.paper.generating import Generator
from bench.paper.tools import look_up

ACTION = re.compile(r"Act (\d+): (Search|Finish) '([^'\n]*)'")
MAX_ACTIONS = 6
MAX_CHARS = 400


async def solve(model: Generator, case: Case, chunk: int) -> str:
    """What the last action finishes with; empty if none does."""
    prompt = case.examples
    prompt += "Answer with thoughts (Tho), searches (Act, Obs) and a finish.\n"
    prompt += f"Q: {case.question}\n"
    for _ in range(MAX_ACTIONS):
        text = ""
        action = None
        while action is None:
            made = await model.generate(prompt + text, chunk)
            text += made.text
            action = ACTION.search(text)
            if action is None and (made.is_ended or len(text) > MAX_CHARS):
                return ""
        number, kind, subject = action.groups()
        if kind == "Finish":
            return subject
        prompt += text[: action.end()]
        prompt += f"\nObs {number}: {look_up(case.pages, subject)}\n"
    return ""
