"""Writes verdicts.txt and pydantic.jsonl anew, with `--zod` also zod.jsonl (needs npm)."""

import shutil
import subprocess
import sys
import tempfile

from tests.constraints.corpus.pydantic_models import schemas
from tests.constraints.corpus.schemas import FOLDER, SOURCES, read, verdicts_of, written

_PACKAGES = ("zod@4.6.7", "zod-to-json-schema@3.25.2")


def zod_schemas() -> str:
    with tempfile.TemporaryDirectory() as folder:
        # Node looks for packages beside the script.
        script = shutil.copy(FOLDER / "zod_types.mjs", folder)
        subprocess.run(["npm", "install", "--silent", *_PACKAGES], cwd=folder, check=True)
        return subprocess.run(["node", script], check=True, capture_output=True, text=True).stdout


def main() -> None:
    if "--zod" in sys.argv:
        (FOLDER / "zod.jsonl").write_text(zod_schemas())
    (FOLDER / "pydantic.jsonl").write_text(written(schemas()))
    lines = [line for source in SOURCES for line in verdicts_of(read(source)).values()]
    (FOLDER / "verdicts.txt").write_text("".join(f"{line}\n" for line in lines))


if __name__ == "__main__":
    main()
