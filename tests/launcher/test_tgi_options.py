"""Every flag and variable of TGI's launcher is known: a command line that was its works, or says
why it cannot."""

from typing import Any

import pytest
import typer

from launcher.cli import app
from launcher.errors import BadSetting
from launcher.tgi_options import TgiOptions, in_our_words, refuse

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


def options() -> dict[str, Any]:
    command: Any = typer.main.get_command(app)
    serve = command.commands["serve"]
    return {spelling: each for each in serve.params for spelling in each.opts}


@pytest.mark.parametrize("flag", FLAGS)
def test_a_flag_of_tgi_is_known_by_its_name_and_its_variable(flag: str) -> None:
    known = options()
    option = known["--" + flag]
    variables = option.envvar
    if flag not in WITHOUT_VARIABLE:
        names = [variables] if isinstance(variables, str) else list(variables or ())
        assert flag.upper().replace("-", "_") in names


def test_what_asks_for_nothing_is_not_refused() -> None:
    refuse(TgiOptions(lora_adapters="", usage_stats="on"))


def test_what_asks_for_something_is_refused_with_its_reason() -> None:
    with pytest.raises(BadSetting, match=r"^--lora-adapters a,b: adapters are not served yet"):
        refuse(TgiOptions(lora_adapters="a,b"))


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        (["serve", "m", "--sharded", "true"], ["serve", "m", "--sharded"]),
        (["serve", "--sharded", "false", "m"], ["serve", "--no-sharded", "m"]),
        (["serve", "--sharded=true"], ["serve", "--sharded"]),
        (["serve", "--sharded", "m", "true"], ["serve", "--sharded", "m", "true"]),
    ],
)
def test_sharded_takes_a_word_as_tgi_s_does(said: list[str], meant: list[str]) -> None:
    assert in_our_words(said) == meant
