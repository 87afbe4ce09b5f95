"""Copies between the host and the device."""

import numpy as np
import pytest
import torch

from model_server.staging import ALIGNMENT, Array, PackedArrays, PinnedStaging

ARRAYS: tuple[Array, ...] = (
    np.array([True, False, True]),
    np.array([0.25, 0.5], dtype=np.float64),
    np.zeros((0, 4), dtype=np.int64),
    np.arange(6, dtype=np.int32).reshape(2, 3)[:, ::2],  # not contiguous
    np.array([-1, 2**40], dtype=np.int64),
)


def test_arrays_of_any_dtypes_fit_into_one_piece_of_memory() -> None:
    packed = PackedArrays.of(ARRAYS)
    memory = np.zeros(packed.num_bytes, dtype=np.uint8)
    packed.write(memory)
    for tensor, array in zip(packed.read(torch.from_numpy(memory)), ARRAYS, strict=True):
        assert tensor.numpy().dtype == array.dtype
        assert tensor.shape == array.shape
        assert tensor.tolist() == array.tolist()


def test_packed_arrays_are_aligned_and_do_not_overlap() -> None:
    packed = PackedArrays.of(ARRAYS)
    assert packed.offsets == (0, 16, 32, 32, 48)
    assert all(offset % ALIGNMENT == 0 for offset in packed.offsets)
    assert packed.num_bytes == 64


def test_no_arrays_take_no_memory() -> None:
    assert PackedArrays.of(()).num_bytes == 0
    assert PinnedStaging(torch.device("cpu")).to_device_all(()) == ()


def test_on_the_host_nothing_is_copied() -> None:
    staging = PinnedStaging(torch.device("cpu"))
    array = np.arange(4)
    tensor = staging.to_device(array)
    assert tensor.data_ptr() == array.ctypes.data
    assert staging.to_host(tensor).array().ctypes.data == array.ctypes.data


@pytest.mark.gpu
@pytest.mark.filterwarnings("ignore:Synchronization debug mode is a prototype")
def test_a_copy_waits_for_nothing_and_keeps_its_values() -> None:
    device = torch.device("cuda")
    staging = PinnedStaging(device)
    busy = torch.ones(4096, 4096, device=device)
    arrived = []
    torch.cuda.set_sync_debug_mode("error")
    try:
        for step in range(20):
            busy = busy @ busy * 1e-4
            array = np.full(1000, step)
            staged = staging.to_device(array)
            array[:] = -1
            arrived.append(staging.to_host(staged))
    finally:
        torch.cuda.set_sync_debug_mode("default")
    assert [arrival.array().tolist() for arrival in arrived] == [
        [step] * 1000 for step in range(20)
    ]
