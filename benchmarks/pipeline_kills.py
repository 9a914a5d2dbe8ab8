"""`rayrec run`, killed at random moments until it has been killed ten times: is the model that of an undisturbed run?

    python -m benchmarks.pipeline_kills --output benchmarks/results/pipeline_kills.json [--kills 10] [--rows 20000]

One undisturbed run on generated rows is the reference. Then the same command is started again and again in a process
group of its own, each time with SIGKILL for the whole group after a random part of the time that the undisturbed run
took; where it ends before that, its model is compared bit by bit and another folder is begun. Every attempt starts a
Ray of its own, which dies with it.
"""

import argparse
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from safetensors.numpy import load_file

from benchmarks.killable import attempt
from rayrec.common.machine import Machine
from rayrec.store.files import write_json

RECIPE = "dlrm-criteo-debug"
PHASES = ("preprocess", "train", "export")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, required=True)
    parser.add_argument("--kills", type=int, default=10)
    parser.add_argument("--rows", type=int, default=20_000)
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    machine = Machine()
    with tempfile.TemporaryDirectory(prefix="rayrec-kills-") as temporary:
        report = measure(Path(temporary), options.kills, options.rows, options.seed)
    write_json(options.output, {"machine": machine.described(), **report})
    sys.exit(0 if all(pipeline["same_weights"] for pipeline in report["pipelines"]) else 1)


def measure(folder: Path, kills: int, rows: int, seed: int) -> dict[str, Any]:
    """Return each pipeline with the phases in which it was killed, and whether its weights are the undisturbed ones."""
    raw = folder / "raw"
    generate = [sys.executable, "-m", "jobs.generate", "criteo", "--rows", str(rows), "--output", str(raw)]
    subprocess.run(generate, check=True, capture_output=True)
    started = time.perf_counter()
    attempt_pipeline(folder, folder / "undisturbed", None)
    undisturbed_seconds = time.perf_counter() - started
    expected = weights(folder / "undisturbed")
    moments = random.Random(seed)
    pipelines: list[dict[str, Any]] = []
    killed_in: list[str] = []
    remaining = kills
    while remaining or killed_in:
        output = folder / f"pipeline-{len(pipelines)}"
        limit = moments.uniform(0, undisturbed_seconds) if remaining else None
        phase = attempt_pipeline(folder, output, limit)
        if phase is not None:
            killed_in.append(phase)
            remaining -= 1
            print(f"killed in {phase}", file=sys.stderr, flush=True)
            continue
        if killed_in:
            same = weights(output) == expected
            pipelines.append({"killed_in": killed_in, "same_weights": same})
            print(f"finished after {len(killed_in)} kills: same weights: {same}", file=sys.stderr, flush=True)
        else:  # never disturbed: it says nothing
            pipelines.append({"killed_in": [], "same_weights": weights(output) == expected})
        killed_in = []
    return {
        "recipe": RECIPE,
        "rows": rows,
        "kills": sum(len(pipeline["killed_in"]) for pipeline in pipelines),
        "undisturbed_seconds": round(undisturbed_seconds, 1),
        "seed": seed,
        "pipelines": pipelines,
    }


def attempt_pipeline(folder: Path, output: Path, limit: float | None) -> str | None:
    """Run the command, for at most `limit` seconds; the phase in which it was killed, None where it finished."""
    said = attempt(["jobs.run", RECIPE, "--input", folder / "raw", "--output", output], folder / "log", limit)
    if said is None:
        return None
    return next((phase for phase in reversed(PHASES) if f"\n{phase} -> " in said), "start")


def weights(output: Path) -> dict[str, bytes]:
    """Return the bits of every tensor of the model folder."""
    files = (output / "model" / "weights").rglob("*.safetensors")
    return {f"{file.stem}/{name}": value.tobytes() for file in files for name, value in load_file(file).items()}


if __name__ == "__main__":
    main()
