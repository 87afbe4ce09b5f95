"""What makes spans and tensors of image files: a program of `processes/zygote`.

python -m router.images.worker --control-fd N --folder FOLDER --max-pixels N --cpu-s SECONDS
                               --memory-bytes N [--cpu-yield LIBRARY]

    job:     {"dtype": of tensors of floats, "is_base64"} | a file
    answer:  {"span_ids", "tensors": [name, dtype, shape]..} | the tensors' bytes, one after another
             {"refused": why}, which goes on from the name of a field

A file decides how much there is to decode, so its size is known before that begins.
"""

import argparse
import io
import json
import socket
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

from native.cpu_yield import CpuYield
from processes.image_processor import ImageProcessor, NoProcessor
from processes.zygote.frames import Frame
from processes.zygote.zygote import Data, Worker, Zygote
from router.images.decoding import BadImage, decode, of_base64

# What is processed before workers are forked, which then have all that it loads.
_NOISE_SIZE = (97, 61)


class ImageWork:
    """Reads images of at most `max_pixels`."""

    def __init__(self, processor: ImageProcessor, max_pixels: int, memory_bytes: int) -> None:
        self._processor = processor
        self._max_pixels = max_pixels
        self._memory_bytes = memory_bytes

    def answer_frame(self, job: Frame) -> tuple[dict[str, Any], Sequence[Data]]:
        """The span and the tensors of a file, or why there are none."""
        try:
            file = of_base64(job.data) if job.fields["is_base64"] else job.data
            image = decode(file, self._max_pixels)
            made = self._processor.process(image)
        except BadImage as error:
            return {"refused": str(error)}, ()
        except MemoryError:
            mib = self._memory_bytes >> 20
            return {"refused": f"takes more than the {mib} MiB in which it may be read"}, ()
        # A processor is other people's code, and fails in whatever way it likes.
        except Exception as error:  # noqa: BLE001
            reason = " ".join(str(error).split()) or type(error).__name__
            refused = f"of {image.width} x {image.height} pixels is not taken by the model's"
            return {"refused": f"{refused} processor: {reason}"}, ()
        arrays = [
            (name, *as_sent(values, job.fields["dtype"]))
            for name, values in sorted(made.tensors.items())
        ]
        about = [(name, dtype, values.shape) for name, dtype, values in arrays]
        fields = {"span_ids": made.span_ids, "tensors": about}
        return fields, [values.tobytes() for _, _, values in arrays]


def as_sent(values: npt.NDArray[Any], dtype: str) -> tuple[str, npt.NDArray[Any]]:
    """The name of the dtype that an array has when it is sent, and its numbers."""
    if values.dtype != np.float32 or dtype != "bfloat16":
        return str(values.dtype), values
    bits = values.view(np.uint32)
    # To the nearest, and to an even one between two.
    rounded = (bits + (((bits >> 16) & 1) + 0x7FFF)) >> 16
    return dtype, rounded.astype(np.uint16)


def main(argv: Sequence[str]) -> int:
    """Serve until the owner has ended."""
    args = _parser().parse_args(argv)
    try:
        processor = ImageProcessor(args.folder, trust_remote_code=False)
        _try_out(processor)
    except NoProcessor as error:
        with socket.socket(fileno=args.control_fd) as control:
            control.sendall(json.dumps({"failed": str(error)}).encode() + b"\n")
        return 1
    work = ImageWork(processor, args.max_pixels, args.memory_bytes)
    worker = Worker(work, args.cpu_s, args.memory_bytes, CpuYield.at(args.cpu_yield))
    about = {"marker": processor.marker, "tensor_names": sorted(processor.tensor_names)}
    with socket.socket(fileno=args.control_fd) as control:
        Zygote(control, worker, args.memory_bytes, about).run()
    return 0


def _try_out(processor: ImageProcessor) -> None:
    """An image of noise; what that loads, workers have when they are forked."""
    file = io.BytesIO()
    Image.effect_noise(_NOISE_SIZE, 64).save(file, "PNG")
    try:
        processor.process(decode(file.getvalue(), _NOISE_SIZE[0] * _NOISE_SIZE[1]))
    except Exception as error:
        raise NoProcessor(f"its processor fails at an image of noise: {error}") from error


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m router.images.worker")
    parser.add_argument("--control-fd", type=int, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--max-pixels", type=int, required=True)
    parser.add_argument("--cpu-s", type=float, required=True)
    parser.add_argument("--memory-bytes", type=int, required=True)
    parser.add_argument("--cpu-yield", type=Path, help="absent: idle work does not leave its core")
    return parser


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
