"""OpenVINO GenAI under the same load as the servers, in process: its package has no HTTP server.

    ~/.cache/tandem/peers/openvino/bin/python -m bench.openvino_worker FOLDER

Each line of stdin is a load, {"load": {...}, "prompts": [...]}, each line of stdout its report.
It runs in the environment of OpenVINO, so that it imports no more of Tandem than bench.load.
"""

import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy
import openvino
import openvino_genai
from tokenizers import Tokenizer

from bench.load import Load, Report, Trace, report

_CACHE_GIB = 2
_MAX_STEP_TOKENS = 2048


def pipeline(folder: Path) -> Any:
    """Continuous batching, with a prefix cache and room for the longest prompts in one step."""
    scheduler = openvino_genai.SchedulerConfig()
    scheduler.cache_size = _CACHE_GIB
    scheduler.max_num_batched_tokens = _MAX_STEP_TOKENS
    scheduler.enable_prefix_caching = True
    return openvino_genai.ContinuousBatchingPipeline(str(folder), scheduler, "CPU")


def run(engine: Any, tokenizer: Tokenizer, load: Load, prompts: Sequence[str]) -> Report:
    """A closed loop: as many requests at a time as the load says, greedily, EOS ignored."""
    config = openvino_genai.GenerationConfig()
    config.max_new_tokens = load.output_len
    config.ignore_eos = True
    waiting: Iterator[tuple[int, list[int]]] = enumerate(
        tokenizer.encode(text, add_special_tokens=False).ids for text in prompts
    )
    running: list[tuple[Any, Trace]] = []
    done: list[Trace] = []
    started_s = time.perf_counter()
    while True:
        while len(running) < (load.concurrency or 1) and (following := next(waiting, None)):
            number, ids = following
            tensor = openvino.Tensor(numpy.array([ids], dtype=numpy.int64))
            trace = Trace(started_s=time.perf_counter())
            running.append((engine.add_request(number, tensor, config), trace))
        if not running:
            return report(done, time.perf_counter() - started_s)
        engine.step()
        for handle, trace in running:
            _note(handle, trace)
        finished = [trace for _, trace in running if trace.num_tokens >= load.output_len]
        running = [pair for pair in running if pair[1].num_tokens < load.output_len]
        done += finished


def _note(handle: Any, trace: Trace) -> None:
    """Record the tokens that a step has made."""
    while handle.can_read():
        for output in handle.read().values():
            trace.num_tokens += len(output.generated_ids)
            trace.token_times_s.append(time.perf_counter() - trace.started_s)
    trace.ended_s = time.perf_counter()


def main(argv: Sequence[str]) -> None:
    folder = Path(argv[0])
    engine = pipeline(folder)
    tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    sys.stdout.write("ready\n")
    sys.stdout.flush()
    for line in sys.stdin:
        asked = json.loads(line)
        done = run(engine, tokenizer, Load(**asked["load"]), asked["prompts"])
        sys.stdout.write(json.dumps(asdict(done)) + "\n")
        sys.stdout.flush()


if __name__ == "__main__":
    main(sys.argv[1:])
