"""Another program's training until it is ended: `python -m benchmarks.peers.programs.endless PROGRAM ARGUMENTS`.

PROGRAM is one of this folder that has a function `training`. ARGUMENTS is a JSON object for it, with `window` and
`history`, the file that gets a line every `window` steps: JSON of the `step`, the mean `loss` and `samples_per_second`,
as in a run of rayrec. Threads are those that torch takes by itself.
"""

import importlib
import json
import sys
import time
from pathlib import Path


def main() -> None:
    program, arguments = sys.argv[1], json.loads(sys.argv[2])
    module = importlib.import_module(f"benchmarks.peers.programs.{program}")
    window, losses, began = arguments["window"], [], time.perf_counter()
    with Path(arguments["history"]).open("w") as history:
        for step, loss in enumerate(module.training(arguments), start=1):
            losses.append(loss)
            if step % window == 0:
                seconds = time.perf_counter() - began
                record = {
                    "event": "train",
                    "step": step,
                    "loss": sum(map(float, losses)) / window,
                    "samples_per_second": window * arguments["batch"] / seconds,
                }
                print(json.dumps(record), file=history, flush=True)
                losses.clear()
                began = time.perf_counter()


if __name__ == "__main__":
    main()
