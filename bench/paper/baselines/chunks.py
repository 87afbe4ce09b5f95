"""Decoding in chunks until a phrase comes: the loop of every baseline without a tool."""

from collections.abc import Sequence

from bench.paper.generating import Generator


async def decode_until(
    model: Generator, prompt: str, stops: Sequence[str], chunk: int, max_words: int
) -> str:
    """The text up to the first of the phrases, the end, or so many words."""
    text = ""
    while True:
        made = await model.generate(prompt + text, chunk)
        text += made.text
        places = [text.find(stop) for stop in stops if stop in text]
        if places:
            return text[: min(places)]
        if made.is_ended:
            return text
        words = text.split(" ")
        if len(words) > max_words:
            return " ".join(words[:max_words])
