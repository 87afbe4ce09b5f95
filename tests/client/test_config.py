"""What the client takes from its environment."""

from pathlib import Path

from client.config import DEFAULT_URL, ClientConfig, read_config


def test_without_variables_it_is_this_machine() -> None:
    config = read_config({})
    assert (config.url, config.api_key) == (DEFAULT_URL, None)
    assert config.state_folder == Path.home() / ".local/state/tandem"


def test_variables_say_where_the_server_is() -> None:
    environ = {"TANDEM_URL": " host:1 ", "TANDEM_API_KEY": "sesame", "XDG_STATE_HOME": "/state"}
    assert read_config(environ) == ClientConfig("host:1", "sesame", Path("/state/tandem"))


def test_empty_variables_say_nothing() -> None:
    environ = {"TANDEM_URL": "", "TANDEM_API_KEY": " ", "XDG_STATE_HOME": ""}
    assert read_config(environ) == read_config({})
