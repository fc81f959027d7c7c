"""FedAvg in Flower's simulation: a ClientApp, a ServerApp, one CPU per client.

python benchmarks/peers_flower.py FOLDER ROUNDS tutorial|ready        in Flower's environment, see peers.py

`tutorial`: clients as in Flower's tutorials; each call makes a network and a DataLoader, which normalises each sample
when it is read. `ready`: network and normalised data stay in each process, and batches are slices of the data.
"""

import copy
import sys
import time
from itertools import islice

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers_work import answer, read, scores
from torch.nn.functional import cross_entropy

FOLDER, ROUNDS, READY = sys.argv[1], int(sys.argv[2]), sys.argv[3] == "ready"
CPUS = 2
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    work, client = read(FOLDER), int(context.node_config["partition-id"])
    model = work.module if READY else copy.deepcopy(work.module)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    batches = work.batches(client) if READY else islice(work.loader(work.train[client], shuffle=True), work.steps)
    for inputs, labels in batches:
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(work.train[client])})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    work, client = read(FOLDER), int(context.node_config["partition-id"])
    model = work.module if READY else copy.deepcopy(work.module)
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    tests = work.tests(client) if READY else work.loader(work.test[client], shuffle=False)
    accuracy, macro_f1, loss = scores(model, tests, work.classes)
    values = {"accuracy": accuracy, "macro_f1": macro_f1, "loss": loss, "num-examples": len(work.test[client])}
    return Message(content=RecordDict({"metrics": MetricRecord(values)}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    work = read(FOLDER)
    clients = len(work.train)
    stamps: list[float] = []

    def stamp(number: int, arrays: ArrayRecord) -> None:
        if number:  # Flower also calls this function before the first round
            stamps.append(time.perf_counter())

    strategy = FedAvg(min_train_nodes=clients, min_evaluate_nodes=clients, min_available_nodes=clients)
    initial = ArrayRecord(work.module.state_dict())
    result = strategy.start(grid=grid, initial_arrays=initial, num_rounds=ROUNDS, evaluate_fn=stamp)
    answer(stamps, float(result.evaluate_metrics_clientapp[ROUNDS]["accuracy"]))


if __name__ == "__main__":
    run_simulation(
        server_app,
        client_app,
        num_supernodes=len(read(FOLDER).train),
        backend_config={
            "init_args": {"num_cpus": CPUS, "log_to_driver": False},
            "client_resources": {"num_cpus": 1, "num_gpus": 0.0},
        },
    )
