"""Files of API keys: what is read, and what is said of one that is wrong."""

from hashlib import sha256
from pathlib import Path

import pytest

from processes.settings import BadConfig
from router.http.server.auth import KeyRing, read_key_file
from router.request.request import ApiKey

DIGEST = sha256(b"sk-one").hexdigest()
ENTRY = f'[[keys]]\nname = "a"\nsha256 = "{DIGEST}"\n'


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.toml"


def test_a_key_has_a_name_a_share_and_limits(path: Path) -> None:
    limits = "weight = 2\nmax_concurrent_requests = 3\nrequests_per_minute = 4\n"
    limits += "constraint_seconds_per_minute = 6\n"
    path.write_text(f"{ENTRY}{limits}tokens_per_minute = 5\n")

    (key,) = read_key_file(path)

    assert key == ApiKey("a", bytes.fromhex(DIGEST), 2.0, 3, 4, 5, 6)
    assert KeyRing((key,)).find([b"sk-two", b"sk-one"]) is key


def test_all_but_name_and_digest_may_be_absent(path: Path) -> None:
    path.write_text(ENTRY)

    assert read_key_file(path) == (ApiKey("a", bytes.fromhex(DIGEST)),)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "must be a list of [[keys]], at least one, and nothing else"),
        ("keys = 3", "must be a list of [[keys]], at least one, and nothing else"),
        (f"{ENTRY}[other]", "must be a list of [[keys]], at least one, and nothing else"),
        ("keys = [3]", "keys[0]: must be a table"),
        ("[[keys]", "is not TOML: "),
        ('[[keys]]\nname = "a"', "keys[0].sha256: is missing"),
        (f'[[keys]]\nsha256 = "{DIGEST}"', "keys[0].name: is missing"),
        (f'{ENTRY}key = "sk"', "keys[0].key: is none of name, sha256, weight, "),
        (
            f"{ENTRY}weight = 0",
            "keys[0].weight: must be a number between 0.001 and 1000. Given: '0'",
        ),
        (f"{ENTRY}weight = true", "keys[0].weight: must be a number"),
        (f"{ENTRY}tokens_per_minute = 0", "keys[0].tokens_per_minute: must be a whole number"),
        (f"{ENTRY}requests_per_minute = 1.5", "keys[0].requests_per_minute: must be a whole"),
        (ENTRY.replace('"a"', '"a b"'), "keys[0].name: must be a name"),
        (ENTRY.replace(DIGEST, "sk-one"), "keys[0].sha256: must be the 64 hexadecimal digits"),
        (ENTRY * 2, "two keys have the name a"),
        (ENTRY + ENTRY.replace('"a"', '"b"'), f"two keys have the sha256 {DIGEST}"),
    ],
)
def test_what_is_wrong_is_named(path: Path, text: str, said: str) -> None:
    path.write_text(text)

    with pytest.raises(BadConfig) as wrong:
        read_key_file(path)
    assert str(path) in str(wrong.value)
    assert said in str(wrong.value)


def test_a_file_that_cannot_be_read_is_named(path: Path) -> None:
    with pytest.raises(BadConfig, match="No such file"):
        read_key_file(path)
