"""Two patches that let SGLang 0.5.23 run on a machine without CUDA, applied when their module is first imported.

A `.pth` file in the environment imports this module at interpreter start, so that the server's child processes have it
too. It imports nothing heavy itself.
"""

import sys
from collections.abc import Callable, Sequence
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

Execute = Callable[[ModuleType], None]

_keep_alive: list[Any] = []


class PatchedImport(MetaPathFinder):
    """Run `patch(module, execute)` in place of the first execution of the module called `name`."""

    def __init__(self, name: str, patch: Callable[[ModuleType, Execute], None]) -> None:
        self.name = name
        self.patch = patch

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the module's ordinary spec with its loader wrapped, or None for every other module.

        A library may ask for a spec only to learn whether the module is there, so this finder stays in place.
        """
        if fullname != self.name:
            return None
        others = (finder for finder in sys.meta_path if finder is not self)
        spec = next(filter(None, (finder.find_spec(fullname, path, target) for finder in others)), None)
        if spec is not None and spec.loader is not None:
            execute = spec.loader.exec_module
            spec.loader.exec_module = lambda module: self.patch(module, execute)  # type: ignore[method-assign]
        return spec


def declare_torchvision_operators(module: ModuleType, execute: Execute) -> None:
    """Declare the schemas that torchvision registers fake kernels for, then import it.

    The schemas live in torchvision's compiled part. A CUDA build of that cannot load beside a CPU torch, and these two
    are the only ones whose absence stops the import.
    """
    import torch

    library = torch.library.Library("torchvision", "DEF")
    for operator in ("nms", "qnms"):
        library.define(f"{operator}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
    _keep_alive.append(library)  # a Library that is collected takes its operators with it
    execute(module)


def plain_host_pool(module: ModuleType, execute: Execute) -> None:
    """Give HiCache a host pool of ordinary memory and a copy loop in place of pinned memory and a CUDA copy kernel.

    Its bookkeeping, hits and contents are then real; its transfer speed is not that of any GPU.
    """
    execute(module)

    import torch
    from sglang.srt.mem_cache.pool_host import common

    def allocate(
        dims: Any,
        dtype: Any,
        device: Any,
        pin_memory: bool = False,
        allocator: Any = None,
        registration_granularity_bytes: int | None = None,
    ) -> Any:
        return torch.empty(dims, dtype=dtype, device=device)

    def transfer_kv_direct(
        src_layers: Sequence[Any], dst_layers: Sequence[Any], src_indices: Any, dst_indices: Any, page_size: int
    ) -> None:
        for source, destination in zip(src_layers, dst_layers, strict=True):
            destination[dst_indices] = source[src_indices]

    common.ALLOC_MEMORY_FUNCS["cpu"] = allocate
    module.transfer_kv_direct = transfer_kv_direct  # type: ignore[attr-defined]


sys.meta_path[:0] = [
    PatchedImport("torchvision", declare_torchvision_operators),
    PatchedImport("sglang.srt.mem_cache.pool_host.mha", plain_host_pool),
]
