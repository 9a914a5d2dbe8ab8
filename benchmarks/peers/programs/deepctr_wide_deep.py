"""Wide & Deep of DeepCTR-Torch as its users train it: `model.fit` on arrays, torch's Adagrad over whole tables.

The argument is a JSON object of `parts` (Parquet files), `rows_of_table`, `dim`, `mlp`, `batch`, `steps`, `lr` and
`threads`. All rows are read into arrays before the clock starts. The weights start as rayrec's do. Prints JSON:
samples/s of the second epoch over `steps` batches, and its mean loss.
"""

import json
import sys
import time

import pyarrow as pa
import pyarrow.parquet as pq
import torch
from deepctr_torch.inputs import DenseFeat, SparseFeat
from deepctr_torch.models import WDL
from torch import nn


def main() -> None:
    arguments = json.loads(sys.argv[1])
    torch.set_num_threads(arguments["threads"])
    rows = arguments["batch"] * arguments["steps"]
    table = pa.concat_tables(pq.read_table(part) for part in arguments["parts"]).slice(0, rows)
    values = {name: table[name].to_numpy() for name in table.column_names}
    label = values.pop("label")
    features = [
        SparseFeat(name, arguments["rows_of_table"], embedding_dim=arguments["dim"])
        if name.startswith("C")
        else DenseFeat(name, 1)
        for name in values
    ]
    model = WDL(
        features,
        features,
        dnn_hidden_units=arguments["mlp"],
        l2_reg_linear=0,
        l2_reg_embedding=0,
        device="cpu",
    )
    for table in model.embedding_dict.parameters():
        nn.init.trunc_normal_(table, std=arguments["dim"] ** -0.5)
    for layer in (*model.dnn.linears, model.dnn_linear):
        nn.init.xavier_uniform_(layer.weight)
    optimizer = torch.optim.Adagrad(model.parameters(), lr=arguments["lr"])
    model.compile(optimizer, "binary_crossentropy")
    for _ in range(2):
        began = time.perf_counter()
        history = model.fit(values, label, batch_size=arguments["batch"], epochs=1, verbose=0)
    seconds = time.perf_counter() - began
    print(json.dumps({"samples_per_second": rows / seconds, "loss": float(history.history["loss"][-1])}))


if __name__ == "__main__":
    main()
