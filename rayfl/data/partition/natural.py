"""The natural kind: one client per owner of samples, such as the writer of a digit or a role in a play."""

import numpy as np

from rayfl.config.partition import NaturalPartition
from rayfl.data.dataset import Dataset
from rayfl.data.partition.counting import by_client_and_label, rank, split_off
from rayfl.data.partition.kind import PartitionKind, Streams
from rayfl.data.partition.splits import Dealt, Splits, with_validation_share
from rayfl.errors import InputError


class Natural(PartitionKind):
    """One client per owner: all of its samples, or a draw of them where partition.samples sets a maximum."""

    name = "natural"
    config: NaturalPartition
    _names: tuple[str, ...] | None = None

    def client_names(self) -> tuple[str, ...] | None:
        """Return the owners' names."""
        return self._names

    def deal(self, dataset: Dataset, splits: Splits, streams: Streams) -> Dealt:
        """Deal by owner; an owner without samples in the source's validation split has no validation samples."""
        config, rng, validation_rng = self.config, streams.main, streams.validation
        if dataset.owner is None or dataset.owner_names is None:
            if config.column is None:
                raise InputError(
                    "partition.kind=natural: these data do not say whose sample is whose: name the clients in an array"
                    " client, or their column in data.client or partition.column"
                )
            raise InputError(
                f"partition.column={config.column}: this data was read without owners: partition.kind=natural"
                " needs data.source=mnist (column writer), parquet or text"
            )
        owners = len(dataset.owner_names)
        has_test = np.bincount(dataset.owner[splits.test], minlength=owners)
        has = np.bincount(dataset.owner[splits.pool], minlength=owners) + has_test
        least, most = config.samples or (2, max(2, int(has.max())))
        enough = has >= least
        what = f"at least {least} samples"
        if config.test == "official":
            enough &= (has_test > 0) & (has_test < has)
            what += " and some in each of the source's two splits"
        able = np.flatnonzero(enough)
        wanted = config.clients or max(1, len(able))
        if wanted > len(able):
            column = "" if config.column is None else f" in partition.column={config.column}"
            cure = (
                f"use at most {len(able)} clients"
                if len(able)
                else "use a share, such as partition.test=0.2, and a lower partition.samples"
            )
            raise InputError(
                f"partition.clients={wanted}: only {len(able)} of the {owners} owners{column} have {what}: {cure}"
            )
        if config.clients is not None:
            able = np.sort(rng.permutation(able)[: config.clients])
        self._names = tuple(dataset.owner_names[i] for i in able)
        number = np.full(owners, -1)
        number[able] = np.arange(len(able))
        client = number[dataset.owner]

        def shuffled(split: np.ndarray, rng: np.random.Generator) -> np.ndarray:
            samples = rng.permutation(split[client[split] >= 0])
            return samples[np.argsort(client[samples], kind="stable")]

        samples = shuffled(np.union1d(splits.pool, splits.test), rng)
        sizes = has[able]

        def cut(samples: np.ndarray, sizes: np.ndarray, kept: np.ndarray) -> np.ndarray:
            return samples[rank(sizes) < np.repeat(kept, sizes)]

        kept = np.minimum(sizes, most)
        if config.test != "official":
            share = by_client_and_label(dataset, cut(samples, sizes, kept), kept)
            parts = split_off(dataset, share, kept, config.test, rng)
        else:
            in_test = dataset.is_test[samples]
            n_test = has_test[able]
            n_train = sizes - n_test
            kept_test = np.clip(np.rint(n_test * (kept / sizes)).astype(np.int64), 1, most - 1)
            kept_train = np.minimum(n_train, most - kept_test)
            parts = (
                cut(samples[~in_test], n_train, kept_train),
                kept_train,
                cut(samples[in_test], n_test, kept_test),
                kept_test,
            )
        if not len(splits.validation):
            return with_validation_share(config, dataset, parts, validation_rng)
        validation = shuffled(splits.validation, validation_rng)
        n_validation = np.bincount(client[validation], minlength=len(able))
        kept_validation = np.rint(n_validation * (kept / sizes)).astype(np.int64)
        return Dealt(*parts, cut(validation, n_validation, kept_validation), kept_validation)
