"""What stands between a checkpoint's processor and the packages that are installed."""

import json
import subprocess
import sys
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import pytest

from processes.image_processor import ImageProcessor, hide_unfit_torchvision
from tests import seeing_checkpoint


@pytest.fixture
def unfit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A torchvision of another torch; its folder."""
    package = tmp_path / "torchvision"
    package.mkdir()
    registers = "import torch\ntorch.library.register_fake('torchvision::nms')(print)\n"
    (package / "__init__.py").write_text(registers)
    about = tmp_path / "torchvision-0.1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: torchvision\nVersion: 0.1.0\n")
    monkeypatch.syspath_prepend(tmp_path)
    # Whatever there is afterwards goes.
    monkeypatch.setitem(sys.modules, "torchvision", None)
    del sys.modules["torchvision"]
    return tmp_path


@pytest.mark.usefixtures("unfit")
def test_a_torchvision_of_another_torch_is_told_and_looks_absent() -> None:
    torch = version("torch")
    reason = hide_unfit_torchvision()
    assert reason is not None
    assert reason.startswith(f"torchvision 0.1.0 does not match torch {torch}: pip install")
    assert f"torch=={torch.partition('+')[0]}" in reason
    assert find_spec("torchvision") is None
    assert hide_unfit_torchvision() == reason


@pytest.mark.slow
def test_a_shard_starts_beside_it(unfit: Path) -> None:
    path = f"import sys; sys.path[:0] = [{str(unfit)!r}]; import model_server.__main__"
    subprocess.run([sys.executable, "-c", path], check=True)


def test_the_largest_image_is_one_that_a_prompt_has_just_room_for(tmp_path: Path) -> None:
    folder = seeing_checkpoint.save("qwen2_5_vl", tmp_path)
    path = folder / "preprocessor_config.json"
    settings = json.loads(path.read_text())
    # 64 pixels a token.
    settings["size"] = {"shortest_edge": 64, "longest_edge": 64 * 5000}
    path.write_text(json.dumps(settings))
    processor = ImageProcessor(folder, trust_remote_code=False)
    assert 900 < len(processor.largest(1000).span_ids) <= 1000
    assert 4900 < len(processor.largest(100_000).span_ids) <= 5000


def test_of_a_processor_that_makes_all_images_alike_any_is_the_largest(tmp_path: Path) -> None:
    processor = ImageProcessor(seeing_checkpoint.save("llava", tmp_path), trust_remote_code=False)
    assert processor.largest(1000).tensors["pixel_values"].shape == (1, 3, 28, 28)
    # No prompt has room for it.
    assert len(processor.largest(3).span_ids) == 16
