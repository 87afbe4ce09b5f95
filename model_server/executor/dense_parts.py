"""What DenseCuda is made of on a device: kernels where Triton can compile them, else torch."""

import importlib
from collections.abc import Callable, Mapping, Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from model_server.attention.base import LayerGeometry, TokenMajorAttention
from model_server.attention.sdpa import GatherSdpaAttention
from model_server.attention.select import select_backend
from model_server.executor.decode_graphs import Capture, CudaCapture
from model_server.executor.dense_cuda import DenseCuda
from model_server.executor.device_weights import read_weights
from model_server.executor.int4_parameters import Int4Parameters
from model_server.executor.layer_ops import LayerOps, TorchLayerOps
from model_server.executor.matrix import matrices_of
from model_server.executor.partition import Partition
from model_server.recipe.recipe import Attention, Recipe


def build_dense_cuda(
    recipe: Recipe,
    dtype: torch.dtype,
    device: torch.device,
    partition: Partition,
    group: dist.ProcessGroup | None,
    parameters: Mapping[str, Tensor],
    tables: Sequence[tuple[Tensor, Tensor]],
    *,
    quantize: str | None = None,
    release: Callable[[str], None] = lambda name: None,
) -> DenseCuda:
    """The executor of this rank's part; for the arguments see read_weights and DenseCuda.

    quantize: "fp8", or None
    """
    geometries = [_geometry(layer.attention, partition) for layer in recipe.layers]
    backend = select_backend("auto", device, dtype, geometries)
    ops: LayerOps = TorchLayerOps()
    attention: TokenMajorAttention = GatherSdpaAttention()
    new_capture: Callable[[], Capture] | None = None
    if backend.name == "triton":
        ops = importlib.import_module("model_server.executor.triton_layers").TritonLayerOps()
        attention = backend  # type: ignore[assignment]
        # Collectives of gloo run on the host.
        if group is None or dist.get_backend(group) == "nccl":
            new_capture = CudaCapture
    weights = read_weights(
        recipe,
        parameters,
        tables,
        dtype=dtype,
        device=device,
        partition=partition,
        make_matrix=matrices_of(ops, quantize),
        int4=parameters.int4 if isinstance(parameters, Int4Parameters) else {},
        release=release,
    )
    return DenseCuda(
        weights, ops, attention, partition=partition, group=group, new_capture=new_capture
    )


def _geometry(attention: Attention, partition: Partition) -> LayerGeometry:
    num_kv_heads = len(partition.kv_heads(attention.num_kv_heads))
    return LayerGeometry(num_kv_heads, attention.head_dim, attention.head_dim)
