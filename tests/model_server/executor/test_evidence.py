"""What one shard leaves to the next, that proves the weights."""

from functools import partial
from pathlib import Path
from typing import NoReturn

import pytest
import torch

from model_server.executor.evidence import NOT_KEPT, OF_IMAGES, Evidence, KeptEvidence

CPU = torch.device("cpu")


def made(value: float = 0.0) -> Evidence:
    exact = torch.full((3, 8), value)
    # What is one tensor in the process that wrote it is two in the file.
    return Evidence(torch.tensor([1, 2, 3]), exact, exact, exact.bfloat16())


def not_made() -> NoReturn:
    raise AssertionError("it was left")


def kept_in(folder: Path, checkpoint: str = "these weights") -> KeptEvidence:
    return KeptEvidence(folder / "evidence.safetensors", checkpoint)


def test_the_next_shard_reads_what_this_one_made(tmp_path: Path) -> None:
    first = kept_in(tmp_path).evidence(partial(made, 2.0), CPU)
    read = kept_in(tmp_path).evidence(not_made, CPU)
    assert torch.equal(read.token_ids, first.token_ids)
    assert torch.equal(read.exact, first.exact)
    assert torch.equal(read.native, first.native)
    assert [path.name for path in tmp_path.iterdir()] == ["evidence.safetensors"]


def test_that_of_an_image_lies_beside_it(tmp_path: Path) -> None:
    assert kept_in(tmp_path).read(OF_IMAGES) is None
    kept_in(tmp_path).write(OF_IMAGES, {"pixel_values": torch.ones(3)})
    kept_in(tmp_path).evidence(made, CPU)
    read = kept_in(tmp_path).read(OF_IMAGES)
    assert read is not None
    assert read["pixel_values"].tolist() == [1.0, 1.0, 1.0]


def test_that_of_other_weights_is_made_anew(tmp_path: Path) -> None:
    kept_in(tmp_path).evidence(made, CPU)
    assert kept_in(tmp_path, "those").evidence(partial(made, 1.0), CPU).exact.max() == 1.0


def test_a_file_that_is_cut_off_is_made_anew_and_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept_in(tmp_path).evidence(made, CPU)
    path = tmp_path / "evidence.safetensors"
    path.write_bytes(path.read_bytes()[:40])
    assert kept_in(tmp_path).evidence(partial(made, 1.0), CPU).exact.max() == 1.0
    assert "the evidence of an earlier shard cannot be read" in caplog.text


def test_without_room_for_it_nothing_is_left_and_that_is_told(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    kept_in(tmp_path / "gone").evidence(made, CPU)
    assert "no evidence is left to the next shard" in caplog.text
    assert kept_in(tmp_path / "gone").read(OF_IMAGES) is None


def test_where_nothing_is_kept_all_is_made() -> None:
    NOT_KEPT.write(OF_IMAGES, {"pixel_values": torch.ones(3)})
    assert NOT_KEPT.read(OF_IMAGES) is None
    assert NOT_KEPT.evidence(partial(made, 1.0), CPU).exact.max() == 1.0
