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
#: Of the many tests that compare numbers of workers and both federations, one for each kernel: methods differ in the
#: terms of their objectives (none, a pull, a partner's logits, contrasts), and in what they ask of trained models.
METHODS = {
    "test_both_federations_give_the_same_bits": ["fedac", "fedac + cam", "wecfl + con (representations)"],
    "test_every_method_goes_on_from_a_checkpoint_to_the_same_bits_on_another_number_of_workers": [
        "fedprox_ensemble",
        "ditto",
        "fedtsdp + finetune",
        "ifca + cam + finetune",
        "wecfl + con (parameters)",
        "wecfl + con (representations)",
        "wecfl + con_cks + finetune",
    ],
    # Another network: an MLP.
    "test_every_method_takes_newcomers_in_with_the_same_bits_on_any_number_of_workers": [
        "fedprox",
        "ifca + cam",
        "wecfl + con (representations)",
    ],
    "test_training_together_gives_the_same_bits_on_any_number_of_workers_and_nearly_the_loops": [
        "ifca + cam",
        "wecfl + con_cks + finetune",
    ],
}
SAME_BITS = [f"test_every_method.py::{test}[{case}]" for test, cases in METHODS.items() for case in cases]
SAME_BITS += ["test_federation.py::test_batch_norm_and_dropout_give_the_same_bits_too"]
#: Which shapes kernels are called with does not depend on the CPU.
LEFT_OUT = "not no_kernel_is_called_with_shapes"


@pytest.mark.slow
@pytest.mark.timeout(900)
@pytest.mark.skipif(
    torch.backends.cpu.get_cpu_capability() != "AVX512", reason="this CPU has no AVX-512: all tests ran without it"
)
def test_trainers_and_same_bits_also_without_avx512() -> None:
    tests = [str(TESTS / name) for name in [*TRAINERS, *SAME_BITS]]
    words = ["-q", "-p", "no:cacheprovider", "-k", LEFT_OUT, *tests]
    command = [sys.executable, "-c", PROGRAM, *words]
    done = subprocess.run(
        command, env={**os.environ, **AVX2}, cwd=TESTS.parent, capture_output=True, text=True, timeout=880
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]
