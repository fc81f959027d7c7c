"""What a round costs a client, by method: worked out by hand, in models and in units of FedAvg."""

from collections.abc import Callable

import numpy as np
import pytest

from rayfl.federation.ledger import Ledger
from rayfl.methods import METHODS
from rayfl.simulation.server import RoundRecord, Server

Make = Callable[..., Server]
K = 4
SMALL = ["data.limit=480", "partition.clients=12", "local.steps=2", "rounds=6", "model.name=mlp"]
CAM, CON, CKS = "method.addons=[cam]", "method.addons=[con]", "method.addons=[cks]"
#: Models down, up and held per client in a round in which the method does all of its work. B is the backbone's share,
#: L a loss per cluster, S a sketch with its distance, D the map's directions.
EXPECTED: dict[str, tuple[list[str], str, str, str]] = {
    "local": ([], "0", "0", "1"),
    "fedavg": ([], "1", "1", "1"),
    "fedprox": ([], "1", "1", "1"),
    "fedavg_ensemble": (["method.clusters=4"], "K", "K", "K"),
    "fedprox_ensemble": (["method.clusters=4"], "K", "K", "K"),
    "fedper": ([], "B", "B", "1"),
    "ditto": ([], "1", "1", "2"),
    "local_kmeans": (["method.clusters=4", "method.warmup=2"], "1", "1", "1"),
    "ifca": (["method.clusters=4"], "K", "1 + L", "K"),
    "fesem": (["method.clusters=4"], "1", "1", "1"),
    "wecfl": (["method.clusters=4"], "1", "1", "1"),
    "cfl": (["method.warmup=5"], "1", "1", "1"),
    "flhc": (["method.clusters=4", "method.warmup=2"], "1", "1", "1"),
    "fedgroup": (["method.clusters=4"], "1", "1", "1"),
    "cgpfl": (["method.clusters=4"], "1", "1", "2"),
    "fedsoft": (["method.clusters=4"], "K", "1 + L", "K + 1"),
    "fedsoft, between estimates": (["method.clusters=4", "method.estimate_every=3"], "1", "1", "2"),
    "local_kmeans, warming up": (["method.clusters=4", "method.variant=sr_fca"], "0", "0", "1"),
    "oneshot_ifca": (["method.one_shot_rounds=2", "method.threshold=0.0001"], "K", "1 + L", "K"),
    "fedac": (["method.tuning=none", "method.components=5"], "1 + B", "1 + S", "2 + B + D"),
    "sr_fca": (["method.one_shot_rounds=2", "method.refinements=0"], "1", "1", "1"),
    "fedtsdp": (["method.hopkins=0.99"], "1", "1", "1"),
    "ifca + cam": (["method.clusters=4", CAM, "method.cam.warmup=2"], "K + 1", "2 + L", "K + 1"),
    "ifca + cam, warming up": (["method.clusters=4", CAM, "method.cam.warmup=5"], "1", "1", "1"),
    "fesem + cam": (["method.clusters=4", CAM, "method.cam.warmup=2"], "2", "2", "2"),
    "wecfl + con": (["method.clusters=4", CON], "K", "1", "K"),
    "ifca + con": (["method.clusters=4", CON], "K", "1 + L", "K"),
    "wecfl + cks": (["method.clusters=4", CKS], "2", "1", "2"),
    "wecfl + con_cks": (
        ["method.clusters=4", "method.addons=[con_cks]"],
        "1 + (K - 1) * H + B",
        "1",
        "1 + (K - 1) * H + B",
    ),
    "fedavg, momentum kept": (["local.keep_momentum=true", "local.momentum=0.9"], "1", "1", "2"),
}


def fifth_round(make: Make, case: str) -> tuple[Server, RoundRecord]:
    overrides = EXPECTED[case][0]
    server = make(*SMALL, f"method.name={case.split()[0].strip(',')}", *overrides)
    return server, [server.run_round(number) for number in range(1, 6)][-1]


@pytest.mark.parametrize("case", EXPECTED)
def test_a_client_receives_sends_and_holds_as_many_models_as_worked_out_by_hand(serial_server: Make, case: str) -> None:
    server, record = fifth_round(serial_server, case)
    layout, size = server.fed.layout, server.fed.layout.size
    clusters = len(server.method.state.centres) if case == "oneshot_ifca" else K
    words = {
        "K": clusters,
        "B": (layout.backbone.stop - layout.backbone.start) / size,
        "H": (layout.head.stop - layout.head.start) / size,
        "L": clusters / size,
        "S": (5 + 1) * 8 / (4 * size),
        "D": 5 * layout.parameters / size,
    }
    expected = [eval(text, {}, words) for text in EXPECTED[case][1:]]
    found = [record.extras[name] for name in ("models_down", "models_up", "storage")]
    assert found == pytest.approx(expected, rel=1e-9)


def test_every_method_is_counted() -> None:
    assert METHODS.keys() <= EXPECTED.keys()


def test_ten_clusters_cost_what_the_thesis_says(serial_server: Make) -> None:
    """Table 7.6: IFCA with ten clusters holds and receives ten models, with CAM eleven."""
    costs = {}
    for name, more in {"ifca": [], "ifca + cam": [CAM, "method.cam.warmup=1"]}.items():
        server = serial_server(*SMALL, "method.name=ifca", "method.clusters=10", *more)
        extras = [server.run_round(number).extras for number in (1, 2)][-1]
        costs[name] = (extras["models_down"], extras["storage"])
    assert costs == {"ifca": pytest.approx((10, 10)), "ifca + cam": pytest.approx((11, 11))}


def test_computation_is_passes_of_samples_over_those_of_one_training(serial_server: Make) -> None:
    """IFCA: K forward passes over all training samples, then one training, whose samples count three times."""
    server, record = fifth_round(serial_server, "ifca")
    fed = server.fed
    trained = 2 * server.config.local.batch_size  # two steps
    expected = 1 + K * fed.n_train.sum() / (3 * trained * fed.clients)
    assert record.extras["computation"] == pytest.approx(expected)
    assert fifth_round(serial_server, "fedavg")[1].extras["computation"] == 1
    # CAM: two trainings, each with the other model's outputs added.
    assert fifth_round(serial_server, "fesem + cam")[1].extras["computation"] == pytest.approx(2 * (3 + 1) / 3)


def test_a_part_that_was_received_before_is_not_counted_again() -> None:
    """Pieces of 4, 8 and 16 bytes; 5 clients."""
    ledger = Ledger(np.ones(5), np.array([4, 8, 16]))
    model, other = np.arange(7, dtype=np.float32), np.ones(7, np.float32)
    ledger.down(model, np.array([0, 1, 2]), np.array([True, True, False]))  # 3 * 12
    assert ledger.bytes_down == 36
    ledger.down(model.copy(), np.array([2, 3]), np.array([True, True, True]))  # 2 * 16, and 12 for client 3
    assert ledger.bytes_down == 36 + 32 + 12
    ledger.down(model, np.arange(5), np.array([False, True, True]))  # 0, 1: 16 each; 4: 24
    assert ledger.bytes_down == 80 + 32 + 24
    ledger.down(other, np.array([4]), np.array([True, True, True]))
    assert ledger.bytes_down == 136 + 28


def test_absent_clients_cost_nothing(serial_server: Make) -> None:
    server = serial_server(*SMALL, "method.name=cgpfl", "method.clusters=4", "participation.count=3")
    for number in range(1, 5):
        extras = server.run_round(number).extras
        assert extras["models_up"] == 1
        assert extras["computation"] == 1
