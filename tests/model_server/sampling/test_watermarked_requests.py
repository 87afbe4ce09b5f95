"""A marked answer of a whole shard is the one that transformers' generate() gives."""

from pathlib import Path

from transformers import WatermarkingConfig

from model_server.engine.distributed import World
from proto.contract import SamplingParams
from tests.model_server.engine.shards import driver_of, load
from tests.model_server.model import tiny_models

MARKED = SamplingParams(watermark=True)
PROMPTS = ((5, 9, 31), (7,), tuple(range(3, 40)))
NUM_NEW = 40


def test_greedy_answers_are_those_of_generate(tmp_path: Path) -> None:
    """Prompts in chunks, one batch, an unmarked answer among them and a preemption."""
    reference = tiny_models.build("llama")
    reference.save_pretrained(tmp_path)
    driver = driver_of(load(tmp_path, World()))
    for index, prompt in enumerate(PROMPTS):
        driver.add(index, prompt, NUM_NEW, sampling=MARKED, ignore_eos=True)
    driver.add(9, PROMPTS[0], NUM_NEW, ignore_eos=True)
    for _ in range(12):
        driver.step(16)
    driver.preempt(1)
    driver.run(16)
    config = WatermarkingConfig(greenlist_ratio=0.5, bias=2.0)
    for index, prompt in enumerate(PROMPTS):
        expected = tiny_models.greedy(reference, list(prompt), NUM_NEW, watermarking_config=config)
        assert driver.outputs[index] == expected
    assert driver.outputs[9] != driver.outputs[0]
