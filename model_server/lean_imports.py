"""Imports transformers without what it imports for others: a compiler, and tensors over ranks.

That would be a quarter of what a shard on CPUs imports. Whoever uses the compiler gets it.
"""

import sys
from collections.abc import Callable, Sequence
from importlib import import_module
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import torch
import torch.distributed as dist

_COMPILER = "torch._dynamo"
# The one part that transformers imports, which needs no other.
_MARKED = "torch._dynamo._trace_wrapped_higher_order_op"
_MODELS = "transformers.models"


def import_transformers(*, is_divided: bool) -> None:
    """For a shard on CPUs, of no code but transformers' own. Call this before anything else does.

    is_divided: whether its classes may be, over ranks; torch's tensors for that want the compiler
    """
    if not is_divided:
        _put_off_compiler()
        _hide_distributed()
    _skip_list_of_models()
    import_module("transformers.modeling_utils")


class _Compiler(ModuleType):
    """Stands for torch's compiler until it is asked for more than marks on functions."""

    def __getattr__(self, name: str) -> Any:
        return getattr(_load_compiler(), name)


class _WholeCompiler(MetaPathFinder, Loader):
    """Before a part of the compiler is imported, all of it is: parts want one another in order."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        is_part = fullname.startswith(f"{_COMPILER}.") and fullname != _MARKED
        if not is_part or not isinstance(sys.modules.get(_COMPILER), _Compiler):
            return None
        _load_compiler()
        part = import_module(fullname)
        # Of one that is there by now the spec would be taken, and its code run again.
        del sys.modules[fullname]
        return ModuleSpec(fullname, self, loader_state=(part, part.__spec__))

    def create_module(self, spec: ModuleSpec) -> ModuleType:
        part: ModuleType = spec.loader_state[0]
        return part

    def exec_module(self, module: ModuleType) -> None:
        assert module.__spec__ is not None
        module.__spec__ = module.__spec__.loader_state[1]


def _load_compiler() -> ModuleType:
    if isinstance(sys.modules.get(_COMPILER), _Compiler):
        del sys.modules[_COMPILER]
    return import_module(_COMPILER)


def _put_off_compiler() -> None:
    """Most classes of transformers and operators of torch are marked for it, or against it."""
    package: Any = _package(_COMPILER, _Compiler)
    package.allow_in_graph = package.assume_constant_result = package.disable = _unmarked
    torch_module: Any = torch
    torch_module._dynamo = package
    sys.meta_path.insert(0, _WholeCompiler())


def _unmarked(function: Callable[..., Any] | None = None, *_: Any, **options: Any) -> Any:
    """A decorator, with or without options, that changes nothing."""
    return _unmarked if function is None else function


def _hide_distributed() -> None:
    """Have transformers remember that torch has no tensors over ranks."""
    is_available = dist.is_available
    dist.is_available = lambda: False
    try:
        import_module("transformers.utils.import_utils").is_torch_distributed_available()
    finally:
        dist.is_available = is_available


def _skip_list_of_models() -> None:
    """The package would read all files of models for names, which was done at its parent's."""
    _package(_MODELS, _Models)


class _Models(ModuleType):
    """Models, each imported when it is asked for."""

    def __getattr__(self, name: str) -> Any:
        try:
            return import_module(f"{_MODELS}.{name}")
        except ModuleNotFoundError as error:
            raise AttributeError(f"module {_MODELS!r} has no attribute {name!r}") from error


def _package(name: str, kind: Callable[[str], ModuleType]) -> ModuleType:
    """One whose parts can be imported, and whose own code is not run."""
    spec = find_spec(name)
    assert spec is not None
    assert spec.submodule_search_locations is not None
    package = kind(name)
    package.__spec__ = spec
    package.__file__ = spec.origin
    package.__path__ = spec.submodule_search_locations
    sys.modules[name] = package
    return package
