"""An own data source: two moons, one pair per town, as a DataFrame.

    rayfl run data.source=own_source:moons data.client=town partition.kind=natural model.name=mlp

A source is a function that returns data: arrays `(x, y)`, a mapping with x and y (and test, validation, client), a
DataFrame, or a torch Dataset. It gets data.options as keyword arguments.
"""

import numpy as np
import pandas as pd
from sklearn.datasets import make_moons


def moons(towns: int = 6, samples: int = 60, noise: float = 0.1) -> pd.DataFrame:
    tables = []
    for town in range(towns):
        x, y = make_moons(samples, noise=noise, random_state=town)
        turn = 0.0 if town % 2 == 0 else np.pi / 2  # every second town sees them from another side
        turned = x @ np.array([[np.cos(turn), -np.sin(turn)], [np.sin(turn), np.cos(turn)]])
        table = pd.DataFrame(turned, columns=["east", "north"])
        tables.append(table.assign(label=np.where(y == 0, "upper", "lower"), town=f"town {town}"))
    return pd.concat(tables, ignore_index=True)
