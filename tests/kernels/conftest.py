"""Runs kernels in Triton's interpreter where there is no GPU. It is chosen when one is defined."""

import gc
import os

import torch

if not torch.cuda.is_available():
    os.environ["TRITON_INTERPRET"] = "1"


def pytest_sessionfinish() -> None:
    """Triton's bindings complain at the end of what is still frozen."""
    gc.unfreeze()
