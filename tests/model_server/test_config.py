import re
from pathlib import Path

import pytest

from model_server.__main__ import main
from model_server.config import DownloadConfig, QuantizeConfig, ServeConfig, parse, parse_quantize
from processes.settings import BadConfig


def serve(*flags: str, **environ: str) -> ServeConfig:
    config = parse(["serve", "some/model", *flags], environ)
    assert isinstance(config, ServeConfig)
    return config


def test_a_lone_shard_listens_at_the_first_socket() -> None:
    config = serve("--uds-path", "/tmp/x")
    assert config.address == Path("/tmp/x-0")
    assert config.url == "unix:///tmp/x-0"
    assert (config.rank, config.world_size) == (0, 1)


def test_ranks_come_from_the_environment_and_name_their_own_socket() -> None:
    config = serve("--uds-path", "/tmp/x", RANK="1", WORLD_SIZE="2", MASTER_PORT="4711")
    assert config.address == Path("/tmp/x-1")
    assert config.url == "unix:///tmp/x-1"
    assert config.master_port == 4711


def test_a_relative_socket_is_given_to_others_by_its_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    config = serve("--uds-path", "run/../x")
    assert config.url == f"unix://{tmp_path}/x-0"
    assert config.address == tmp_path / "x-0"


def test_over_tcp_each_rank_takes_the_next_port_and_the_advertised_name_is_dialled() -> None:
    flags = ("--listen", "0.0.0.0:7000", "--advertise-host", "box")
    config = serve(*flags, RANK="1", WORLD_SIZE="2", SHARD_TOKEN="a-secret-of-both")
    assert config.address == "0.0.0.0:7001"
    assert config.url == "box:7001"


def test_ranks_of_several_machines_know_that_and_what_they_must_have_alike() -> None:
    ranks = {"RANK": "1", "WORLD_SIZE": "4", "SHARD_TOKEN": "a-secret-of-both"}
    config = serve("--dtype", "float32", "--listen", "10.0.0.2:1", **ranks, LOCAL_WORLD_SIZE="2")
    assert config.spans_machines
    assert not serve(**ranks).spans_machines
    assert not serve(**ranks, LOCAL_WORLD_SIZE="4").spans_machines
    shared = config.shared
    assert (shared["--dtype"], shared["--num-shard"], shared["--max-loras"]) == (
        "float32",
        "4",
        "0",
    )
    # What each machine has for itself, and what nobody may see.
    assert not {"--rank", "--listen", "--json-output", "--model-id"} & set(shared)
    assert "a-secret-of-both" not in str(shared)


def test_a_watermark_is_as_strong_as_tgi_makes_it_by_default() -> None:
    assert (serve().watermark_gamma, serve().watermark_delta) == (0.5, 2.0)
    changed = serve("--watermark-gamma", "0.25", "--watermark-delta", "-1.5")
    assert (changed.watermark_gamma, changed.watermark_delta) == (0.25, -1.5)


def test_traces_go_where_tgi_s_flag_says() -> None:
    config = serve("--otlp-endpoint", "http://a:4317")
    assert config.otlp_endpoint == "http://a:4317"
    assert config.otlp_service_name == "text-generation-inference.server"
    assert serve().otlp_endpoint is None


def test_download_weights_has_its_own_words() -> None:
    config = parse(["download-weights", "a/b", "--revision", "v1"], {})
    assert config == DownloadConfig("a/b", "v1")


@pytest.mark.parametrize(
    ("flags", "environ", "said"),
    [
        pytest.param((), {"RANK": "2", "WORLD_SIZE": "2"}, "RANK=2 must be below", id="rank"),
        pytest.param((), {"WORLD_SIZE": "none"}, "WORLD_SIZE 'none'", id="world-size-text"),
        pytest.param((), {"WORLD_SIZE": "0"}, "at least 1", id="world-size-zero"),
        pytest.param((), {"OMP_NUM_THREADS": "-1"}, "OMP_NUM_THREADS '-1'", id="threads"),
        pytest.param(("--sharded",), {}, "--sharded needs RANK", id="sharded-alone"),
        pytest.param(("--listen", "nowhere"), {}, "must be HOST:PORT", id="listen-no-port"),
        pytest.param(("--listen", "h:70000"), {}, "1 to 65535", id="listen-big-port"),
        pytest.param(("--listen", "h:7000"), {}, "needs the variable SHARD_TOKEN", id="no-token"),
        pytest.param((), {"SHARD_TOKEN": "short"}, "at least 16 visible", id="short-token"),
        pytest.param(("--cuda-memory-fraction", "1.5"), {}, "at most 1", id="fraction"),
        pytest.param(("--cuda-memory-fraction", "nan"), {}, "nan", id="fraction-nan"),
        pytest.param(
            ("--watermark-gamma", "0"), {}, "--watermark-gamma '0': .* above 0", id="gamma"
        ),
        pytest.param(("--watermark-gamma", "1"), {}, "below 1", id="gamma-all"),
        pytest.param(("--watermark-gamma", "nan"), {}, "--watermark-gamma 'nan'", id="gamma-nan"),
        pytest.param(("--watermark-delta", "inf"), {}, "--watermark-delta 'inf'", id="delta"),
        pytest.param(("--watermark-delta", "nan"), {}, "must be finite", id="delta-nan"),
        pytest.param(("--kv-blocks", "0"), {}, "at least 1", id="kv-blocks"),
        pytest.param(("--otlp-endpoint", "http://a"), {}, "'http://a': .*HOST:PORT", id="no-port"),
        pytest.param(("--otlp-endpoint", "a:4318/v1"), {}, "without a path", id="otlp-http"),
        pytest.param(("--quantize", "awq"), {}, "--quantize 'awq'", id="quantize"),
    ],
)
def test_what_breaks_a_rule_is_refused_by_name_and_value(
    flags: tuple[str, ...], environ: dict[str, str], said: str
) -> None:
    with pytest.raises(BadConfig, match=said):
        serve(*flags, **environ)


def test_a_bad_flag_is_a_line_and_an_exit_code_of_its_own(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["serve", "some/model", "--kv-blocks", "0"]) == 2
    assert capsys.readouterr().err == "error: --kv-blocks '0': must be a whole number, at least 1\n"


def test_quantize_has_its_own_words() -> None:
    config = parse_quantize(["a/b", "out", "--calibration", "t.jsonl", "--group-size=64"], {})
    assert config == QuantizeConfig(
        model_id="a/b", out=Path("out"), group_size=64, calibration=Path("t.jsonl")
    )
    assert (config.method, config.bits, config.seed) == ("gptq", 4, 0)


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        (("--method", "awq"), "--method 'awq': its format is read, not written"),
        (("--method", "int8"), "while a model is loaded: launcher serve --quantize int8"),
        (("--method", "fp8"), "while a model is loaded: launcher serve --quantize fp8"),
        (("--method", "exl2"), "--method 'exl2': must be one of gptq, rtn"),
        (("--bits", "8"), "--bits '8': must be 4"),
        (("--group-size", "48"), "--group-size '48': must be one of 16, 32, 64, 128"),
        (("--seed", "-1"), "--seed '-1': must be a whole number, at least 0"),
    ],
)
def test_what_is_not_written_is_refused_with_the_reason(flags: tuple[str, ...], said: str) -> None:
    with pytest.raises(BadConfig, match=re.escape(said)):
        parse_quantize(["a/b", "out", *flags], {})
