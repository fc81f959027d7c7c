"""What must hold on both kinds of CPU runs a second time as on a CPU without AVX-512, where this one has it.

The libraries choose their kernels when they are loaded, so it takes a process of its own.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

#: oneDNN, ATen and MKL each read their own.
AVX2 = {"ONEDNN_MAX_CPU_ISA": "AVX2", "ATEN_CPU_CAPABILITY": "avx2", "MKL_ENABLE_INSTRUCTIONS": "AVX2"}
TESTS = Path(__file__).parent
#: A process for all of them, which refuses to be a copy of the first run.
PROGRAM = """
import sys, pytest, torch
assert torch.backends.cpu.get_cpu_capability() == "AVX2"
sys.exit(pytest.main(sys.argv[1:]))
"""
TRAINERS = ["test_vectorised.py", "test_layers.py", "test_stacked.py", "test_choice.py", "test_training.py"]
SAME_BITS = ["test_every_method.py", "test_federation.py"]
#: Which shapes kernels are called with does not depend on the CPU. Of the many tests that compare numbers of workers
#: and both federations, some of each kind.
SELECTED = f"""
(({" or ".join(TRAINERS)}) and not no_kernel_is_called_with_shapes)
or (test_every_method.py and number_of_workers and (cam or con or ditto or fedprox or fedtsdp))
or (test_every_method.py and both_federations and (fedac or wecfl))
or batch_norm_and_dropout
"""


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="this CPU has no AVX-512: all tests ran without it"
)
def test_trainers_and_same_bits_also_without_avx512() -> None:
    files = [str(TESTS / name) for name in [*TRAINERS, *SAME_BITS]]
    words = ["-q", "-p", "no:cacheprovider", "--durations=0", "-k", " ".join(SELECTED.split()), *files]
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(
        command, env={**os.environ, **AVX2}, cwd=TESTS.parent, capture_output=True, text=True, timeout=880
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
