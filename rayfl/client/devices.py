"""Settings of the GPU that make runs repeatable."""

import os

#: cuBLAS gives the same sums each time only with a workspace of fixed size; it reads this setting when CUDA starts.
CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def request_determinism() -> None:
    """Request GPU kernels that give the same bits each time; call this before CUDA starts.

    Operations without such a kernel only give a warning, because a user's network may need them.
    """
    os.environ.setdefault(*CUBLAS_WORKSPACE)
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    # No code here reads memory that it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # TF32 keeps 10 bits of each factor, and whether it is used depends on the GPU.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
