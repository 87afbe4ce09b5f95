"""Every flag and variable of TGI's launcher is known: a command line that was its works, or says
why it cannot."""

import pytest

from launcher.config import LaunchConfig, serve_settings
from processes.settings import BadConfig, CommandLine, flag_of, read_settings, variables_of

FLAGS = """
    model-id revision validation-workers sharded num-shard quantize speculate dtype kv-cache-dtype
    trust-remote-code max-concurrent-requests max-best-of max-stop-sequences max-top-n-tokens
    max-input-tokens max-input-length max-total-tokens waiting-served-ratio
    max-batch-prefill-tokens max-batch-total-tokens max-waiting-tokens max-batch-size cuda-graphs
    hostname port prometheus-port shard-uds-path master-addr master-port huggingface-hub-cache
    weights-cache-override disable-custom-kernels cuda-memory-fraction rope-scaling rope-factor
    json-output otlp-endpoint otlp-service-name cors-allow-origin api-key watermark-gamma
    watermark-delta ngrok tokenizer-config-path disable-grammar-support env max-client-batch-size
    lora-adapters usage-stats payload-limit enable-prefill-logprobs graceful-termination-timeout
""".split()
# HOSTNAME is the machine's name; MODEL_ID is read for the argument, which may be several; the
# others TGI reads in another way, or not at all.
WITHOUT_VARIABLE = {"hostname", "env", "model-id"}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_of_tgi_is_known_by_its_name_and_its_variable(flag: str) -> None:
    known = {
        flag_of(name): variables_of(each)
        for each in serve_settings()
        for name in (each.name, *each.metadata["aliases"])
    }
    variable = flag.upper().replace("-", "_")
    assert f"--{flag}" in known
    assert flag in WITHOUT_VARIABLE or variable in known[f"--{flag}"]


def read(*argv: str) -> LaunchConfig:
    by_flag = CommandLine(serve_settings(), "launcher serve", "").parse(argv)
    return read_settings(LaunchConfig, by_flag, {})


def test_what_asks_for_nothing_is_not_refused() -> None:
    assert read("--lora-adapters", "", "--usage-stats", "on").lora_adapters is None


def test_what_asks_for_something_is_refused_with_its_reason() -> None:
    with pytest.raises(BadConfig, match=r"^--lora-adapters 'a,b': adapters are not served yet"):
        read("--lora-adapters", "a,b")


@pytest.mark.parametrize(
    ("argv", "sharded", "models"),
    [
        (["m", "--sharded", "true"], True, ("m",)),
        (["--sharded", "false", "m"], False, ("m",)),
        (["--sharded=true"], True, ()),
        (["--sharded", "m", "true"], True, ("m", "true")),
    ],
)
def test_sharded_takes_a_word_as_tgi_s_does(
    argv: list[str], sharded: bool, models: tuple[str, ...]
) -> None:
    config = read(*argv)
    assert (config.sharded, config.model_ids) == (sharded, models)
