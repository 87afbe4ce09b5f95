"""`python -m models.training [all|train|evaluate|sample]`: makes, continues or measures the model.

all        from nothing: tokenizer, training, evaluation, files into the output folder
train      goes on from the checkpoint in the work folder, or begins
evaluate   measures the model in the output folder and writes its EVALUATION.md
sample     prints some answers of the model in the output folder
"""

import argparse
import shutil
import sys
import time
from pathlib import Path

from models.training import answering, evaluate, network, tokenizer, train

OUTPUT = Path(__file__).resolve().parent.parent / "demo"
WORK = Path("build/demo-model")
NUM_TOKENS = 20_000_000
_FILES = ("config.json", "generation_config.json", "model.safetensors", "tokenizer.json",
          "tokenizer_config.json", "training.json")  # fmt: skip
_SAMPLES = (
    "Once there was", "The weather was", "My friend", "Q: Who are you?\nA:",
    "<|user|>Hello!<|end|><|assistant|>",
    "<|user|>What is the capital of France?<|end|><|assistant|>",
    "<|user|>Tell me a story about a fox.<|end|><|assistant|>",
    "<|user|>Where does Doric Caldman live?<|end|><|assistant|>",
    "<|user|>Please write a poem about the sea.<|end|><|assistant|>",
)  # fmt: skip


def _arguments(argv: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m models.training", description="Trains and measures the bundled model."
    )
    parser.add_argument(
        "verb", nargs="?", default="all", choices=("all", "train", "evaluate", "sample")
    )
    parser.add_argument("--tokens", type=int, default=NUM_TOKENS, help="length of the training")
    parser.add_argument("--work", type=Path, default=WORK, help="folder of the checkpoint")
    parser.add_argument("--output", type=Path, default=OUTPUT, help="folder of the model")
    parser.add_argument("--questions", type=int, default=200, help="questions per task and form")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(argv)


def _train(arguments: argparse.Namespace) -> None:
    work: Path = arguments.work
    if not (work / "tokenizer.json").exists():
        print(f"making the tokenizer in {work}", flush=True)
        tokenizer.save(tokenizer.train(arguments.seed), work)
    print(f"training on {arguments.tokens / 1e6:.1f} M tokens", flush=True)
    train.train(train.Plan(num_tokens=arguments.tokens, seed=arguments.seed), work)
    arguments.output.mkdir(parents=True, exist_ok=True)
    for name in _FILES:
        shutil.copyfile(work / name, arguments.output / name)
    print(f"wrote the model to {arguments.output}", flush=True)


def _evaluate(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.output
    model, words = network.load(folder), tokenizer.load(folder)
    scores = evaluate.evaluate(model, words, arguments.questions)
    trained = folder / "training.json"
    training = trained.read_text() if trained.exists() else ""
    print(evaluate.report(scores, training, folder), flush=True)
    for score in scores:
        for question, expected, given in score.wrong:
            print(f"wrong, {score.task}: {question!r}\n  wanted {expected!r}\n  got    {given!r}")
    missed = evaluate.missed(scores)
    print(
        f"below what is wanted: {', '.join(missed)}" if missed else "all that is wanted is reached"
    )


def _sample(arguments: argparse.Namespace) -> None:
    folder: Path = arguments.output
    model, words = network.load(folder), tokenizer.load(folder)
    answers = answering.answer_all(model, words, _SAMPLES, [None] * len(_SAMPLES))
    for prompt, answer in zip(_SAMPLES, answers, strict=True):
        print(f"{prompt!r} -> {answer.text!r}")


def main(argv: list[str]) -> None:
    arguments = _arguments(argv)
    began = time.monotonic()
    if arguments.verb == "all":
        for name in (*_FILES, train.CHECKPOINT):
            (arguments.work / name).unlink(missing_ok=True)
    if arguments.verb in ("all", "train"):
        _train(arguments)
    if arguments.verb in ("all", "evaluate"):
        _evaluate(arguments)
    if arguments.verb == "sample":
        _sample(arguments)
    print(f"done in {(time.monotonic() - began) / 60:.1f} min")


if __name__ == "__main__":
    main(sys.argv[1:])
