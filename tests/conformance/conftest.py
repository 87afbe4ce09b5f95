"""The servers, one of each kind for all tests of an environment."""

import subprocess
from collections.abc import Iterator

import pytest

from models import smollm2
from tests.conformance.serving import (
    ROOT,
    Fake,
    Served,
    faked,
    fleeted,
    launched,
    tandem_python,
)


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--write-transcripts", action="store_true", help="Record what curl is answered now."
    )


@pytest.fixture(scope="session")
def served() -> Iterator[Served]:
    """The bundled model, served in float32 so that references can be computed elsewhere."""
    # Constraints may take their time on a machine that runs two environments.
    patience = ("--constraint-timeout", "60")
    with launched("--dtype", "float32", "--max-client-batch-size", "8", *patience) as served:
        yield served


@pytest.fixture(scope="session")
def seeing(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Served]:
    """A tiny random model that sees."""
    folder = tmp_path_factory.mktemp("model") / "llava"
    command = [tandem_python(), "-m", "tests.seeing_checkpoint", "llava", str(folder)]
    subprocess.run(command, cwd=ROOT, check=True, timeout=120, capture_output=True)
    with launched("--dtype", "float32", model=folder) as served:
        yield served


@pytest.fixture(scope="session")
def real() -> Iterator[Served]:
    """The real model, as `make serve` serves it."""
    if not smollm2.FILE.exists():
        pytest.skip(f"there is no {smollm2.FILE}: `make real-model` downloads it")
    with launched(model=smollm2.FILE) as served:
        yield served


@pytest.fixture(scope="module")
def front() -> Iterator[Served]:
    """A front that loads the bundled model when it is asked for, and unloads it soon."""
    with fleeted("--dtype", "float32", "--model-idle-timeout", "0.5") as front:
        yield front


@pytest.fixture(scope="session")
def quick_router() -> Iterator[Fake]:
    """The real router over a fake shard."""
    with faked() as fake:
        yield fake


@pytest.fixture
def fake(quick_router: Fake) -> Iterator[Fake]:
    """The router over a fake shard, which does right again after the test."""
    yield quick_router
    quick_router.order()
