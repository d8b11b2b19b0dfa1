"""Stand-in for SGLang's kernel package, whose published wheel holds CUDA kernels only.

Any public name can be imported from it; calling one raises `NotImplementedError`. The `torch_native` attention path
that the CPU server runs on is plain PyTorch and calls none.
"""

from collections.abc import Callable
from typing import Any, NoReturn

__version__ = "0.0.0+standin"


def __getattr__(name: str) -> Callable[..., NoReturn]:
    # Dunder look-ups are the import system's own questions (`__path__`, `__all__`), not kernels.
    if name.startswith("__"):
        raise AttributeError(name)

    def kernel(*args: Any, **kwargs: Any) -> NoReturn:
        raise NotImplementedError(f"sgl_kernel.{name}: there is no CPU kernel of this name")

    kernel.__name__ = name
    return kernel
