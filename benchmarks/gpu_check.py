"""What only a GPU can show: how fast training is and where its time goes, training in every way, the kernels.

    python -m benchmarks.gpu_check [SECTION ...]      (from the repository's root; `make gpu-check` runs all)

The sections, by what they tell in little time; each should take less than four minutes (seconds on one H100;
minutes are estimates):

    dlrm-criteo, dcnv2-criteo, wide-deep-outbrain-lean, neumf-ml-20m
                steps of a published recipe on batches that lie on the device, compiled and not, with pooled embeddings
                in float32 and bfloat16: beside NVIDIA's figures, with the profile of ten steps (1 to 2 minutes each)
    memory, streamed
                whole runs of the four from Parquet (2 to 3 minutes each)
    training    training in every way that rayrec has, with NCCL in a process a GPU, evaluation, checkpoints, resuming,
                negatives drawn on the device (77 s)
    tests       the kernels' tests (55 s), and training by the shipped recipes (half a minute more)
    ray         Ray Train and its workers (25 s)
    errors, speed
                the kernels' errors (22 s) and speed (67 s)
    networks    dense networks alone, eager and compiled (44 s)

The kernels need torch and Triton only; what else is missing is skipped, with a line that says so. Prints tables and
writes benchmarks/results/gpu_check.json as each section ends, in place of that section's earlier results. Exit code: 0
if all that ran passed, or if there is no GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import torch

from rayrec.common.machine import Machine

REPOSITORY = Path(__file__).resolve().parents[1]
RESULTS = REPOSITORY / "benchmarks" / "results" / "gpu_check.json"
TESTS = ("tests/gpu", "tests/integration/test_shipped_recipes.py")
"""The first needs torch and Triton alone."""
Row = dict[str, Any]
Sections = dict[str, tuple[str, Callable[[], list[Row]]]]
"""Title, and what measures, by name."""


def main() -> int:
    if not torch.cuda.is_available():
        print(f"gpu-check: torch {torch.__version__} sees no CUDA GPU, so nothing was checked")
        return 0
    from benchmarks import gpu_kernels

    needed = ("torchrec", "fbgemm_gpu", "pydantic", "pyarrow")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    sections: Sections = {}
    with tempfile.TemporaryDirectory(prefix="rayrec-gpu-check-") as folder:
        if missing:
            print(f"training is skipped: {', '.join(missing)} not installed")
        else:
            sections |= training_sections(Path(folder), "cuda", torch.cuda.device_count())
        sections |= {
            "tests": ("Tests", partial(run_tests, TESTS[:1] if missing else TESTS)),
            "errors": ("Dot interaction against the float64 reference", gpu_kernels.measure_errors),
            "speed": ("Dot interaction: speed", gpu_kernels.measure_speed),
        }
        if not missing:
            from benchmarks import gpu_models

            sections["networks"] = (
                "Dense networks of the published models: speed",
                gpu_models.measure_dense_networks,
            )
        chosen = sys.argv[1:] or list(sections)
        if unknown := set(chosen) - sections.keys():
            print(f"gpu-check: no such section: {', '.join(sorted(unknown))}; use {', '.join(sections)}")
            return 2
        return run_sections({name: sections[name] for name in chosen}, RESULTS)


def training_sections(folder: Path, device: str, workers: int, *, batch: int | None = None, **smaller: int) -> Sections:
    """Return those that train, on GPUs, or on CPUs by the same functions.

    `batch` and `smaller` (`largest`, `steps`) make the recipes' smaller than they were published.
    """
    from benchmarks import gpu_training as training

    speeds = [speed if batch is None else replace(speed, batch=batch) for speed in training.SPEEDS]
    sections: Sections = {}
    for speed in speeds:
        steps = partial(training.measure_steps, folder / "steps" / speed.recipe, device, workers, speed, **smaller)
        sections[speed.recipe] = (f"Steps of {speed.recipe}, beside NVIDIA's on an A100", steps)
    for name, in_memory in (("memory", True), ("streamed", False)):
        runs = partial(training.measure_runs, folder / name, device, workers, speeds, in_memory=in_memory, **smaller)
        sections[name] = (f"Whole runs from Parquet: {name}", runs)
    ways = partial(training.check_training, folder / "ways", device, workers)
    with_ray = partial(training.train_with_ray, folder / "ray", device, workers)
    return sections | {"training": ("Training in every way", ways), "ray": ("Ray Train", with_ray)}


def run_sections(sections: Sections, output: Path) -> int:
    """Run the sections in order, and write each into `output` as it ends; the exit code."""
    gpu = describe_gpu()
    print_table("GPU", [gpu])
    content = json.loads(output.read_text()) if output.exists() else {"sections": {}}
    failed = []
    for name, (title, measure) in sections.items():
        began, machine = time.perf_counter(), Machine()
        try:
            rows = measure()
        except Exception as error:  # the sections after it are still worth their time
            rows = [{"ok": False, "error": f"{type(error).__name__}: {error}"}]
        if torch.cuda.is_available():
            torch.cuda.empty_cache()  # what this process keeps, others lack
        seconds = round(time.perf_counter() - began, 1)
        described = {"day": time.strftime("%Y-%m-%d"), "seconds": seconds, "machine": {**machine.described(), **gpu}}
        content["sections"][name] = {"title": title, **described, "rows": rows}
        print_table(f"{title} ({seconds} s)", rows)
        if any(row.get("ok") is False for row in rows):
            failed.append(name)
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_text(json.dumps(content, indent=1) + "\n")
    print(f"\n{'FAILED: ' + ', '.join(failed) if failed else 'all passed'}; written to {output}")
    return 1 if failed else 0


def describe_gpu() -> Row:
    """Return what a section's results say of the GPU; nothing without a GPU."""
    if not torch.cuda.is_available():
        return {}
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "GPU memory GiB": round(properties.total_memory / 2**30, 1),
        "SMs": properties.multi_processor_count,
        "CUDA": torch.version.cuda,
    }


def run_tests(tests: Sequence[str]) -> list[Row]:
    """Return one row, with pytest's last line, or with why the tests did not run."""
    if importlib.util.find_spec("pytest") is None:
        return [{"skipped": "pytest is not installed; the errors below cover the same kernels"}]
    # The project's pytest settings ask for plug-ins and versions that a bare machine need not have.
    command = ["-m", "pytest", "-q", "-c", os.devnull, "--rootdir", ".", "-p", "no:cacheprovider", *tests]
    run = subprocess.run(
        [sys.executable, *command],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        print(run.stdout + run.stderr)
    return [{"tests": " ".join(tests), "result": run.stdout.strip().rsplit("\n", 1)[-1], "ok": run.returncode == 0}]


def print_table(title: str, rows: list[Row]) -> None:
    """Print the rows as aligned columns; numbers to the right."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[str(row.get(name, "")) for name in columns] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    print(f"\n{title}")
    for line in (columns, *cells):
        print("  " + "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
