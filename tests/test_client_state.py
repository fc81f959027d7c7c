"""Clients' states: in memory up to a budget, in mapped files beyond it, with the same answers."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rayfl.client.store import ClientState, ClientStates
from rayfl.errors import RayflError

SIZE = 1500  # more than a page, and no whole number of pages


def vector(seed: int) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(SIZE, dtype=np.float32)


@settings(max_examples=40, deadline=None)
@given(
    budget_rows=st.integers(0, 4),
    steps=st.lists(
        st.tuples(st.sampled_from(["put", "keep", "drop"]), st.sampled_from("ab"), st.integers(0, 7)), max_size=40
    ),
)
def test_states_answer_like_a_dictionary_whatever_the_budget(
    budget_rows: int, steps: list[tuple[str, str, int]]
) -> None:
    states = ClientStates(SIZE, budget_rows * SIZE * 4)
    expected: dict[tuple[str, int], tuple[np.ndarray, bool]] = {}
    for number, (step, slot, client) in enumerate(steps):
        if step == "drop":
            states.drop_unkept(slot)
            expected = {k: v for k, v in expected.items() if k[0] != slot or v[1]}
        else:
            states.put(slot, client, vector(number), keep=step == "keep")
            expected[slot, client] = (vector(number), step == "keep")
    for slot in "ab":
        for client in range(8):
            found = states.get(slot, client)
            wanted = expected.get((slot, client))
            assert (found is None) == (wanted is None)
            if wanted is not None:
                assert found is not None
                assert np.array_equal(found, wanted[0])
                assert states.is_kept(slot, client) == wanted[1]


def test_models_beyond_the_budget_are_not_this_processs_memory(tmp_path: Path) -> None:
    def private_memory() -> int:
        lines = Path("/proc/self/smaps_rollup").read_text().splitlines()
        return sum(int(line.split()[1]) for line in lines if line.startswith("Pss:")) * 1024

    size, count = 250_000, 200  # 200 MB in all, 20 MB of it in memory
    states = ClientStates(size, budget=20 * 4 * size, folder=str(tmp_path))
    before = private_memory()
    for client in range(count):
        states.put("model", client, np.full(size, client, np.float32), keep=True)
    grown = private_memory() - before
    assert grown < 60e6, f"{grown / 1e6:.0f} MB"
    assert all(states.get("model", c)[-1] == c for c in range(count))  # type: ignore[index]
    assert private_memory() - before < 60e6
    assert not list(tmp_path.iterdir())  # nameless: nothing to clean up after a crash


def test_rows_of_dropped_models_are_used_again_memory_first() -> None:
    states = ClientStates(SIZE, budget=2 * SIZE * 4)
    for round_number in range(50):
        for client in range(5):
            states.put("model", client, vector(round_number + client), keep=False)
        states.drop_unkept("model")
    assert len(states._memory) == 2
    assert states._spilled._count == 3


def test_a_state_taken_out_is_put_back_the_same_elsewhere() -> None:
    states = ClientStates(SIZE, budget=10**6)
    states.put("model", 3, vector(1), keep=True)
    states.put("global", 3, vector(2), keep=False)
    taken = states.take([3, 4])
    states.put("model", 3, vector(9), keep=True)  # what was taken is a copy
    assert taken.keys() == {3}
    assert isinstance(taken[3], ClientState)
    other = ClientStates(SIZE, budget=0)
    other.restore(taken)
    assert np.array_equal(other.get("model", 3), vector(1))  # type: ignore[arg-type]
    assert np.array_equal(other.get("global", 3), vector(2))  # type: ignore[arg-type]
    assert other.is_kept("model", 3)
    assert not other.is_kept("global", 3)


def test_a_folder_that_takes_no_files_is_told_with_the_cure(tmp_path: Path) -> None:
    states = ClientStates(SIZE, budget=0, folder=str(tmp_path / "missing"))
    with pytest.raises(RayflError, match=r"state\.dir.*state\.memory_mb"):
        states.put("model", 0, vector(0), keep=True)
