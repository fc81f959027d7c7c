"""An own partition: samples are sorted by label and cut into shards, of which each client gets some.

    rayfl run partition.kind=own_partition:Shards partition.clients=10 partition.shards=2

`assign` says whose each sample of the pool is. rayfl cuts training, validation and test samples afterwards.
"""

import numpy as np
from pydantic import BaseModel, Field

from rayfl.data import Dataset, PartitionKind


class Shards(PartitionKind):
    """Shards of samples with few labels, as in the paper on FedAvg."""

    class Options(BaseModel):
        shards: int = Field(2, ge=1, description="how many shards a client gets")

    def assign(self, dataset: Dataset, pool: np.ndarray, rng: np.random.Generator) -> np.ndarray:
        clients = self.config.clients or 10
        by_label = np.argsort(dataset.labels[pool], kind="stable")
        owner_of_shard = rng.permutation(np.repeat(np.arange(clients), self.options.shards))
        client = np.empty(len(pool), int)
        for owner, shard in zip(owner_of_shard, np.array_split(by_label, len(owner_of_shard)), strict=True):
            client[shard] = owner
        return client
