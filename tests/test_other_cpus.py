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
TRAINERS = ["test_vectorised.py", "test_layers.py", "test_stacked.py", "test_choice.py", "test_training.py", "-k"]
#: Which shapes kernels are called with does not depend on the CPU.
TRAINERS += ["not no_kernel_is_called_with_shapes"]
#: Of the many that compare numbers of workers and both federations, some of each kind.
SAME_BITS = ["test_every_method.py", "test_federation.py", "-k"]
SAME_BITS += [
    "(number_of_workers and (cam or con or ditto or fedprox or fedtsdp)) or batch_norm_and_dropout"
    " or (both_federations and (fedac or wecfl))"
]


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="this CPU has no AVX-512: all tests ran without it"
)
@pytest.mark.parametrize("selected", [TRAINERS, SAME_BITS], ids=["trainers", "same-bits"])
def test_trainers_and_same_bits_also_without_avx512(selected: list[str]) -> None:
    environment = {**os.environ, **AVX2}
    probe = [sys.executable, "-c", "import torch; print(torch.backends.cpu.get_cpu_capability())"]
    found = subprocess.run(probe, env=environment, capture_output=True, text=True, timeout=120).stdout.strip()
    assert found == "AVX2"  # else the second run would be a copy of the first
    files = [str(TESTS / name) if name.endswith(".py") else name for name in selected]
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--durations=0", *files]
    done = subprocess.run(command, env=environment, cwd=TESTS.parent, capture_output=True, text=True, timeout=880)
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
