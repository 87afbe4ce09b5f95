"""The router's settings: flags, variables, rules."""

from dataclasses import fields
from pathlib import Path

import pytest

from processes.settings import BadConfig, Kind
from router.config import RouterConfig, read_config


def test_defaults_are_tgis_but_for_the_address() -> None:
    config = read_config([], {})
    assert (config.hostname, config.port) == ("127.0.0.1", 3000)
    assert (config.max_concurrent_requests, config.max_best_of) == (128, 2)
    assert (config.max_stop_sequences, config.max_top_n_tokens) == (4, 5)
    assert (config.max_client_batch_size, config.validation_workers) == (4, 2)
    assert config.max_batch_prefill_tokens == 4096
    assert config.max_body_len(with_images=False) == 2_000_000
    assert config.graceful_termination_timeout == 90.0


def test_a_flag_beats_its_variable_which_beats_the_default() -> None:
    assert read_config([], {"PORT": "81"}).port == 81
    assert read_config(["--port", "82"], {"PORT": "81"}).port == 82
    assert read_config([], {"PORT": ""}).port == 3000


def test_hostname_is_not_read_from_the_environment() -> None:
    assert read_config([], {"HOSTNAME": "a3f9"}).hostname == "127.0.0.1"
    assert read_config(["--hostname", "0.0.0.0"], {}).hostname == "0.0.0.0"


def test_an_older_name_sets_the_same_setting() -> None:
    assert read_config(["--max-input-length", "7"], {}).max_input_tokens == 7
    assert read_config([], {"MAX_INPUT_LENGTH": "8"}).max_input_tokens == 8
    assert read_config(["--max-input-length", "7"], {"MAX_INPUT_TOKENS": "9"}).max_input_tokens == 7


def test_switches_need_no_value_and_read_words_from_the_environment() -> None:
    assert read_config(["--json-output"], {}).json_output
    assert read_config([], {"JSON_OUTPUT": "true"}).json_output
    assert not read_config([], {"JSON_OUTPUT": "0"}).json_output
    assert not read_config(["--prefix-caching", "false"], {}).prefix_caching


def test_running_sequences_default_to_what_a_step_can_carry() -> None:
    assert read_config([], {}).batch_size == 128
    assert read_config(["--max-batch-prefill-tokens", "16"], {}).batch_size == 16
    assert read_config(["--max-batch-size", "3"], {}).batch_size == 3


def test_settings_without_effect_are_taken_by_name() -> None:
    flags = ["--waiting-served-ratio", "0.3", "--max-waiting-tokens", "5", "--messages-api-enabled"]
    flags += ["--max-batch-total-tokens", "100000", "--usage-stats", "on"]
    config = read_config(flags, {})
    assert (config.waiting_served_ratio, config.max_batch_total_tokens) == (0.3, 100_000)


@pytest.mark.parametrize(
    ("argv", "environ", "words"),
    [
        (["--port", "x"], {}, ["--port", "'x'", "whole number"]),
        (["--port", "70000"], {}, ["--port", "'70000'", "65535"]),
        ([], {"PORT": "-1"}, ["PORT", "'-1'", "at least 0"]),
        (["--max-best-of", "0"], {}, ["--max-best-of", "'0'", "at least 1"]),
        (["--graceful-termination-timeout", "nan"], {}, ["'nan'", "seconds above 0"]),
        (["--shard-step-timeout", "0"], {}, ["--shard-step-timeout", "'0'", "above 0"]),
        ([], {"JSON_OUTPUT": "maybe"}, ["JSON_OUTPUT", "'maybe'", "true or false"]),
        (["--log-level", "loud"], {}, ["--log-level", "'loud'", "debug, info"]),
        (["--override-generation-config", "{"], {}, ["'{'", "JSON object of temperature, top_p"]),
        ([], {"OVERRIDE_GENERATION_CONFIG": '{"n": 2}'}, ["'{\"n\": 2}'", "of temperature, top_p"]),
        (["--override-generation-config", '{"top_p": 2}'], {}, ["top_p 2: no request could"]),
        (["--tokenizer-config-path", "/nowhere"], {}, ["'/nowhere'", "file that exists"]),
        (["--master-shard-uds-path", " "], {}, ["--master-shard-uds-path", "not be empty"]),
        (["--colour"], {}, ["--colour", "--help"]),
        (["--port"], {}, ["--port", "expected one argument"]),
        (
            ["--max-input-tokens", "9", "--max-total-tokens", "9"],
            {},
            ["--max-input-tokens 9", "below --max-total-tokens 9"],
        ),
        (
            ["--max-batch-size", "9", "--max-batch-prefill-tokens", "8"],
            {},
            ["--max-batch-size 9", "--max-batch-prefill-tokens 8"],
        ),
        (["--api-key", "a b"], {}, ["--api-key: ", "visible ASCII", "spaces"]),
        ([], {"API_KEY": "a,"}, ["API_KEY: ", "visible ASCII"]),
        (["--cors-allow-origin", "a.org"], {}, ["--cors-allow-origin", "'a.org'", "SCHEME://"]),
        (["--cors-allow-origin", "http://a/"], {}, ["'http://a/'", "without a path"]),
        (["--ssl-certfile", __file__], {}, ["--ssl-certfile needs --ssl-keyfile"]),
        ([], {"SSL_KEYFILE": __file__}, ["--ssl-keyfile needs --ssl-certfile"]),
        (["--header-limit", "100"], {}, ["--header-limit", "'100'", "at least 1024"]),
        (["--otlp-endpoint", "http://a"], {}, ["--otlp-endpoint", "'http://a'", "HOST:PORT"]),
        ([], {"OTLP_ENDPOINT": "http://a:4318/v1/traces"}, ["OTLP_ENDPOINT", "without a path"]),
        (["--otlp-endpoint", "unix:///a:1"], {}, ["'unix:///a:1'", "OTLP over gRPC"]),
        (["--lora-adapters", "a="], {}, ["--lora-adapters", "'a='", "NAME=PATH"]),
        ([], {"LORA_ADAPTERS": "a=b,a=c"}, ["LORA_ADAPTERS", "a is there twice"]),
        (["--lora-folders", "/nowhere"], {}, ["--lora-folders", "/nowhere is none"]),
        (["--lora-folders", "/"], {}, ["--lora-folders: ", "ADMIN_API_KEY"]),
        ([], {"ADMIN_API_KEY": "short"}, ["ADMIN_API_KEY: ", "at least 16"]),
        (["--ngrok"], {}, ["--ngrok", "opens no tunnel", "--port"]),
        (["--ngrok-authtoken", "t"], {}, ["--ngrok-authtoken", "opens no tunnel"]),
        ([], {"NGROK": "true"}, ["NGROK", "opens no tunnel"]),
    ],
)
def test_an_error_names_the_setting_its_value_and_the_rule(
    argv: list[str], environ: dict[str, str], words: list[str]
) -> None:
    with pytest.raises(BadConfig) as caught:
        read_config(argv, environ)
    for word in words:
        assert word in str(caught.value)
    assert "\n" not in str(caught.value)


def test_adapters_are_named_or_go_by_their_ids() -> None:
    flags = ["--lora-adapters", "sql=/a/b, me/chat", "--lora-adapters", "x=y"]
    named = (("sql", "/a/b"), ("me/chat", "me/chat"), ("x", "y"))
    assert read_config(flags, {}).lora_adapters == named
    assert read_config([], {"LORA_ADAPTERS": "a"}).lora_adapters == (("a", "a"),)


def test_folders_of_adapters_are_resolved(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "real")
    flags = ["--lora-folders", f"{tmp_path}/link", "--admin-api-key", "k" * 16]
    assert read_config(flags, {}).lora_folders == ((tmp_path / "real").resolve(),)


def test_words_come_between_commas_or_by_repeating_the_flag() -> None:
    assert read_config(["--api-key", "a,b", "--api-key", "c"], {"API_KEY": "d"}).api_key == (
        "a",
        "b",
        "c",
    )
    assert read_config([], {"API_KEY": "d, e,d"}).api_key == ("d", "e")
    assert read_config([], {"API_KEY": ""}).api_key == ()
    origins = ["--cors-allow-origin", "https://a.org", "--cors-allow-origin", "http://b.org:81"]
    assert read_config(origins, {}).cors_allow_origin == ("https://a.org", "http://b.org:81")
    assert read_config([], {}).cors_allow_origin == ("*",)


def test_nothing_shows_a_secret() -> None:
    shown = repr(read_config(["--api-key", "hush"], {}))
    assert "hush" not in shown
    assert "api_key=" not in shown
    with pytest.raises(BadConfig) as caught:
        read_config(["--api-key", "hush \u00fc"], {})
    assert "hush" not in str(caught.value)
    with pytest.raises(BadConfig, match="SHARD_TOKEN: must be at least 16") as caught:
        read_config([], {"SHARD_TOKEN": "hush"})
    assert "hush" not in str(caught.value)
    assert "a-secret-of-both" not in repr(read_config([], {"SHARD_TOKEN": "a-secret-of-both"}))


@pytest.mark.parametrize(
    ("text", "level"),
    [
        ("WARN", "warning"),
        ("OFF", "off"),
        ("trace", "debug"),
        ("text_generation_router=debug, error", "error"),
        ("text_generation_launcher=trace", "info"),
    ],
)
def test_a_log_level_is_taken_as_tgi_s_users_spell_it(text: str, level: str) -> None:
    assert read_config([], {"LOG_LEVEL": text}).log_level == level


def test_ngroks_own_variables_disturb_nothing() -> None:
    assert read_config([], {"NGROK_AUTHTOKEN": "t", "NGROK": "false"}).port == 3000


@pytest.mark.parametrize("endpoint", ["http://a:4317", "https://[::1]:4317/", "a:4317"])
def test_a_collector_is_taken_as_tgi_s_users_spell_it(endpoint: str) -> None:
    assert read_config(["--otlp-endpoint", endpoint], {}).otlp_endpoint == endpoint
    assert read_config([], {"OTLP_ENDPOINT": endpoint}).otlp_endpoint == endpoint


def test_help_explains_every_setting(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        read_config(["--help"], {})
    assert caught.value.code == 0
    shown = capsys.readouterr().out
    for each in fields(RouterConfig):
        if each.metadata["kind"] is Kind.VARIABLE:
            continue
        assert "--" + each.name.replace("_", "-") in shown


def test_a_chat_template_file_is_a_path(tmp_path: Path) -> None:
    path = tmp_path / "tokenizer_config.json"
    path.write_text("{}")
    assert read_config(["--tokenizer-config-path", str(path)], {}).tokenizer_config_path == path


def test_a_request_may_be_given_a_longest_duration() -> None:
    assert read_config([], {}).max_request_duration is None
    assert read_config([], {"MAX_REQUEST_DURATION": "2.5"}).max_request_duration == 2.5
    with pytest.raises(BadConfig, match="number of seconds above 0"):
        read_config(["--max-request-duration", "0"], {})


def test_a_step_counts_as_stuck_after_four_seconds_by_default() -> None:
    assert read_config([], {}).progress_timeout == 4.0
    assert read_config(["--progress-timeout", "30"], {}).progress_timeout == 30.0


def test_images_are_fetched_from_public_hosts_unless_others_are_named() -> None:
    assert read_config([], {}).fetched_hosts is None
    assert read_config(["--image-hosts", "none"], {}).fetched_hosts == frozenset()
    named = read_config(["--image-hosts", "A.example.,b.example"], {})
    assert named.fetched_hosts == frozenset({"a.example", "b.example"})


@pytest.mark.parametrize(
    "text", ["public,a.example", "none,a", "a.example:80", "https://a", "a,,b"]
)
def test_a_host_of_images_that_is_none_is_refused(text: str) -> None:
    with pytest.raises(BadConfig, match="must be public, none, or names of hosts"):
        read_config(["--image-hosts", text], {})


def test_bodies_may_be_larger_where_they_may_have_images() -> None:
    assert read_config([], {}).max_body_len(with_images=True) == 32_000_000
    limited = read_config(["--payload-limit", "5000"], {})
    assert limited.max_body_len(with_images=True) == limited.max_body_len(with_images=False) == 5000
