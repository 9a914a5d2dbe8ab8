"""What only a GPU can show: the kernels' tests and speed, training in every way that rayrec has, and how fast it is.

    python -m benchmarks.gpu_check [SECTION ...]      (from the repository's root; `make gpu-check` runs all)

Training is that of `rayrec train`: its worker loop with NCCL in a process a GPU, evaluation, checkpoints, resuming and
negatives drawn on the device, with every optimizer and number format; then Ray Train; then the published recipes beside
NVIDIA's figures. The kernels need torch and Triton only; what else is missing is skipped, with a line that says so.
Meant to take eight minutes. Prints tables and writes benchmarks/results/gpu_check.json as it goes; the sections that
are named (tests, errors, speed, training, ray, recipes, networks) replace those of an earlier run there. Exit code: 0
if all that ran passed, or if there is no GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
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


def main() -> int:
    if not torch.cuda.is_available():
        print(f"gpu-check: torch {torch.__version__} sees no CUDA GPU, so nothing was checked")
        return 0
    from benchmarks import gpu_kernels

    needed = ("torchrec", "fbgemm_gpu", "pydantic", "pyarrow")
    missing = [name for name in needed if importlib.util.find_spec(name) is None]
    sections: dict[str, tuple[str, Callable[[], list[Row]]]] = {
        "tests": ("Tests", partial(run_tests, TESTS[:1] if missing else TESTS)),
        "errors": ("Dot interaction against the float64 reference", gpu_kernels.measure_errors),
        "speed": ("Dot interaction: speed", gpu_kernels.measure_speed),
    }
    with tempfile.TemporaryDirectory(prefix="rayrec-gpu-check-") as folder:
        if missing:
            print(f"training is skipped: {', '.join(missing)} not installed")
        else:
            from benchmarks import gpu_models, gpu_training

            gpus = torch.cuda.device_count()
            train = partial(gpu_training.check_training, Path(folder) / "ways", "cuda", gpus)
            with_ray = partial(gpu_training.train_with_ray, Path(folder) / "ray", "cuda", gpus)
            recipes = partial(gpu_training.measure_training, Path(folder) / "speed", "cuda", gpus)
            sections |= {
                "training": ("Training in every way", train),
                "ray": ("Ray Train", with_ray),
                "recipes": ("Published recipes: training and scoring beside NVIDIA's A100", recipes),
                "networks": ("Dense networks of the published models: speed", gpu_models.measure_dense_networks),
            }
        chosen = sys.argv[1:] or list(sections)
        if unknown := set(chosen) - sections.keys():
            print(f"gpu-check: no such section: {', '.join(sorted(unknown))}; use {', '.join(sections)}")
            return 2
        earlier = json.loads(RESULTS.read_text())["sections"] if sys.argv[1:] and RESULTS.exists() else {}
        return _run({name: sections[name] for name in chosen}, earlier)


def _run(sections: Mapping[str, tuple[str, Callable[[], list[Row]]]], results: dict[str, Row]) -> int:
    machine, gpu = Machine(), describe_gpu()
    print_table("GPU", [gpu])
    failed = []
    for name, (title, measure) in sections.items():
        began = time.perf_counter()
        try:
            rows = measure()
        except Exception as error:  # the sections after it are still worth their time
            rows = [{"ok": False, "error": f"{type(error).__name__}: {error}"}]
        torch.cuda.empty_cache()  # what this process keeps, others lack
        seconds = round(time.perf_counter() - began, 1)
        results[name] = {"title": title, "seconds": seconds, "machine": {**machine.described(), **gpu}, "rows": rows}
        print_table(f"{title} ({seconds} s)", rows)
        if any(row.get("ok") is False for row in rows):
            failed.append(name)
        RESULTS.parent.mkdir(parents=True, exist_ok=True)
        RESULTS.write_text(json.dumps({"sections": results}, indent=1) + "\n")
    print(f"\n{'FAILED: ' + ', '.join(failed) if failed else 'all passed'}; written to {RESULTS}")
    return 1 if failed else 0


def describe_gpu() -> Row:
    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "GPU memory GiB": round(properties.total_memory / 2**30, 1),
        "SMs": properties.multi_processor_count,
        "CUDA": torch.version.cuda,
    }


def run_tests(tests: Sequence[str]) -> list[Row]:
    """One row, with pytest's last line, or with why the tests did not run."""
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
    """The rows as aligned columns; numbers to the right."""
    columns = list(dict.fromkeys(name for row in rows for name in row))
    cells = [[str(row.get(name, "")) for name in columns] for row in rows]
    widths = [max(len(text) for text in column) for column in zip(columns, *cells, strict=True)]
    print(f"\n{title}")
    for line in (columns, *cells):
        print("  " + "  ".join(text.rjust(width) for text, width in zip(line, widths, strict=True)))


if __name__ == "__main__":
    sys.exit(main())
