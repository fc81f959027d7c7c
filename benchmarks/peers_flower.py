"""FedAvg in Flower's simulation, as its documentation writes it: a ClientApp, a ServerApp, one CPU per client.

python benchmarks/peers_flower.py FOLDER ROUNDS        in Flower's environment, see peers.py
"""

import sys
import time

import torch
from flwr.app import ArrayRecord, Context, Message, MetricRecord, RecordDict
from flwr.clientapp import ClientApp
from flwr.serverapp import Grid, ServerApp
from flwr.serverapp.strategy import FedAvg
from flwr.simulation import run_simulation
from peers_work import answer, read, scores
from torch.nn.functional import cross_entropy

FOLDER, ROUNDS = sys.argv[1], int(sys.argv[2])
CPUS = 2
client_app, server_app = ClientApp(), ServerApp()


@client_app.train()
def train(message: Message, context: Context) -> Message:
    work, client = read(FOLDER), int(context.node_config["partition-id"])
    model = work.module
    model.load_state_dict(message.content["arrays"].to_torch_state_dict())
    model.train()
    optimizer = torch.optim.SGD(model.parameters(), lr=work.lr)
    for inputs, labels in work.batches(client):
        optimizer.zero_grad()
        cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    metrics = MetricRecord({"num-examples": len(work.train[client])})
    content = RecordDict({"arrays": ArrayRecord(model.state_dict()), "metrics": metrics})
    return Message(content=content, reply_to=message)


@client_app.evaluate()
def evaluate(message: Message, context: Context) -> Message:
    work, client = read(FOLDER), int(context.node_config["partition-id"])
    work.module.load_state_dict(message.content["arrays"].to_torch_state_dict())
    accuracy, macro_f1, loss = scores(work.module, *work.tests(client), work.classes)
    values = {"accuracy": accuracy, "macro_f1": macro_f1, "loss": loss, "num-examples": len(work.test[client])}
    return Message(content=RecordDict({"metrics": MetricRecord(values)}), reply_to=message)


@server_app.main()
def main(grid: Grid, context: Context) -> None:
    work = read(FOLDER)
    clients = len(work.train)
    stamps: list[float] = []

    def stamp(number: int, arrays: ArrayRecord) -> None:
        if number:  # it is also called before the first round
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
