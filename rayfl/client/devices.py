"""The device that a process computes on, and what is asked of it so that a run can be repeated."""

import os

#: cuBLAS gives the same sums each time only with a workspace of a fixed size, which it reads when CUDA starts.
CUBLAS_WORKSPACE = ("CUBLAS_WORKSPACE_CONFIG", ":4096:8")


def request_determinism() -> None:
    """Ask for kernels that give the same bits each time, on GPUs; before CUDA starts.

    Operations that have no such kernel warn and go on, since a user's network may need them.
    """
    os.environ.setdefault(*CUBLAS_WORKSPACE)
    import torch

    torch.use_deterministic_algorithms(True, warn_only=True)
    # Nothing here reads what it has not written.
    torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False
    # TF32 keeps 10 bits of each factor, and whether it is used depends on the GPU.
    torch.backends.cuda.matmul.allow_tf32 = False
    torch.backends.cudnn.allow_tf32 = False
