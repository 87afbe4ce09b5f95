"""Some queries of the unmodified lmql at a time; run by lmql's own Python.

    .venv-conformance/lmql/bin/python bench/lmql_client.py ENDPOINT MODEL TOKENIZER PARALLEL TOKENS

Prints a line of JSON: the texts, the seconds they took, and how many tokens they are. One round is
thrown away first: lmql computes its masks then.
"""

import asyncio
import json
import sys
import time

import lmql

PROMPTS = (
    "Once there was a fox",
    "Once there was an old man",
    "Once there was a goat",
    "Once there was a town",
    "The weather was cold",
    "My friend has a cat",
    "Once there was a bear",
    "Once there was a girl",
)


async def text(endpoint: str, model: str, tokenizer: str, prompt: str, num_tokens: int) -> str:
    """What one query, with a connection of its own, makes of a prompt."""
    served = lmql.model(model, endpoint=endpoint, tokenizer=tokenizer)
    program = f'argmax "{prompt}[TEXT]" where len(TOKENS(TEXT)) < {num_tokens}'
    result = await lmql.run(program, model=served)
    return str((result[0] if isinstance(result, list) else result).variables["TEXT"])


async def main(endpoint: str, model: str, tokenizer: str, parallel: int, num_tokens: int) -> None:
    """The warm-up and one measured round."""
    prompts = [PROMPTS[number % len(PROMPTS)] for number in range(parallel)]
    await asyncio.gather(*(text(endpoint, model, tokenizer, each, 8) for each in prompts))
    began_s = time.perf_counter()
    texts = await asyncio.gather(
        *(text(endpoint, model, tokenizer, each, num_tokens) for each in prompts)
    )
    wall_s = time.perf_counter() - began_s
    counter = lmql.tokenizer(tokenizer)
    num_made = sum(len(counter.tokenize(each)) for each in texts)
    print(json.dumps({"texts": texts, "wall_s": wall_s, "num_tokens": num_made}))


if __name__ == "__main__":
    where, name, folder, num_queries, length = sys.argv[1:]
    asyncio.run(main(where, name, folder, int(num_queries), int(length)))
