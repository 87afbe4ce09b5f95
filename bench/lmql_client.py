"""Some programs of the unmodified lmql at a time; run by lmql's own Python.

    .venv-conformance/lmql/bin/python bench/lmql_client.py ENDPOINT MODEL TOKENIZER PROGRAMS

PROGRAMS is a JSON file: lists of programs "warm_up" and "measured". Prints a line of JSON: the
texts of the measured ones' holes, the seconds they took, how many tokens they are, and the seconds
that lmql itself computed. The others come first: lmql computes its masks then.
"""

import asyncio
import json
import sys
import time
from pathlib import Path

import lmql


async def holes(endpoint: str, model: str, tokenizer: str, program: str) -> list[str]:
    """What one query, with a connection of its own, makes of its holes: result by result."""
    served = lmql.model(model, endpoint=endpoint, tokenizer=tokenizer)
    results = await lmql.run(program, model=served)
    made = results if isinstance(results, list) else [results]
    # What is no text is a distribution over texts, of which the likeliest is a hole's, too.
    values = (value for each in made for value in each.variables.values())
    return [value for value in values if isinstance(value, str)]


async def main(endpoint: str, model: str, tokenizer: str, programs: str) -> None:
    """The warm-up and one measured round."""
    asked = json.loads(Path(programs).read_text())

    async def together(which: str) -> list[list[str]]:
        each = (holes(endpoint, model, tokenizer, program) for program in asked[which])
        return await asyncio.gather(*each)

    await together("warm_up")
    began_s, computed_s = time.perf_counter(), time.process_time()
    texts = await together("measured")
    wall_s, client_s = time.perf_counter() - began_s, time.process_time() - computed_s
    counter = lmql.tokenizer(tokenizer)
    num_made = sum(len(counter.tokenize(hole)) for each in texts for hole in each)
    told = {"texts": texts, "wall_s": wall_s, "client_s": client_s, "num_tokens": num_made}
    print(json.dumps(told))


if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:]))
