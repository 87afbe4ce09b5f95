"""What a generation_config.json says of sampling, and what no request could have."""

import json
import re
from pathlib import Path
from typing import Any

import pytest

from model_server.checkpoint.sampling_defaults import read_sampling_defaults
from model_server.errors import CheckpointBroken


def written(folder: Path, **fields: Any) -> Path:
    (folder / "generation_config.json").write_text(json.dumps(fields))
    return folder


def test_those_that_tandem_has_are_read(tmp_path: Path) -> None:
    fields = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "min_p": 0, "eos_token_id": 1}
    found = read_sampling_defaults(written(tmp_path, **fields, num_beams=4, max_length=20))
    assert found == {"temperature": 0.6, "top_p": 0.95, "top_k": 20.0, "min_p": 0.0}


def test_a_folder_may_name_none(tmp_path: Path) -> None:
    assert read_sampling_defaults(tmp_path) == {}
    assert read_sampling_defaults(written(tmp_path, do_sample=False, temperature=None)) == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("temperature", -0.1),
        ("temperature", "0.6"),
        ("top_p", 1.5),
        ("top_k", 2.5),
        ("min_p", True),
        ("repetition_penalty", 0),
    ],
)
def test_a_value_that_no_request_could_have_is_refused(
    name: str, value: Any, tmp_path: Path
) -> None:
    with pytest.raises(CheckpointBroken, match=re.escape(f"{name} {value!r}")):
        read_sampling_defaults(written(tmp_path, **{name: value}))
