"""What only a GPU can show: the kernels' tests and speed, ten steps of every recipe, the models in each precision.

    python -m benchmarks.gpu_check          (from the repository's root; `make gpu-check` does the same)

The kernels need torch and Triton only; recipes and models are skipped, with a line that says so, where torchrec is
missing. Recipes train as one worker of Ray Train does, with tables sharded on one rank, but without Ray.
Prints tables and writes benchmarks/results/gpu_check.json. Exit code: 0 if all that ran passed, or if there is no GPU.
"""

import importlib.util
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch

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

    sections: list[tuple[str, Callable[[], list[Row]]]] = [
        ("Dot interaction against the float64 reference", gpu_kernels.measure_errors),
        ("Dot interaction: speed", gpu_kernels.measure_speed),
    ]
    missing = [name for name in ("torchrec", "pydantic", "pyarrow") if importlib.util.find_spec(name) is None]
    if not missing:
        from benchmarks import gpu_models

        sections += [
            ("Dense networks of the published models: speed", gpu_models.measure_dense_networks),
            ("Short training on a planted click model", gpu_models.train_briefly),
        ]

    report: Row = {"machine": describe_machine(), "tests": run_tests(TESTS[:1] if missing else TESTS), "sections": {}}
    print_table("Machine", [report["machine"]])
    print(f"\nGPU tests: {report['tests']}")
    for title, measure in sections:
        rows = measure()
        report["sections"][title] = rows
        print_table(title, rows)
    if missing:
        report["skipped"] = f"recipes, models and training: {', '.join(missing)} not installed"
        print(f"\nskipped: {report['skipped']}")

    failed = [title for title, rows in report["sections"].items() if any(row.get("ok") is False for row in rows)]
    if report["tests"].startswith("failed"):
        failed.insert(0, "GPU tests")
    report["failed"] = failed
    RESULTS.parent.mkdir(parents=True, exist_ok=True)
    RESULTS.write_text(json.dumps(report, indent=2) + "\n")
    print(f"\n{'FAILED: ' + '; '.join(failed) if failed else 'all passed'}; written to {RESULTS}")
    return 1 if failed else 0


def describe_machine() -> Row:
    import triton

    properties = torch.cuda.get_device_properties(0)
    return {
        "gpu": properties.name,
        "memory GiB": round(properties.total_memory / 2**30, 1),
        "SMs": properties.multi_processor_count,
        "torch": torch.__version__,
        "CUDA": torch.version.cuda,
        "triton": triton.__version__,
    }


def run_tests(tests: Sequence[str]) -> str:
    """`passed`, `failed: <pytest's last line>`, or why the tests did not run."""
    if importlib.util.find_spec("pytest") is None:
        return "not run: pytest not installed; the errors below cover the same kernels"
    run = subprocess.run(
        # The project's pytest settings ask for plug-ins and versions that a bare machine need not have.
        [
            sys.executable,
            "-m",
            "pytest",
            "-q",
            "-c",
            os.devnull,
            "--rootdir",
            ".",
            "-p",
            "no:cacheprovider",
            *tests,
        ],
        cwd=REPOSITORY,
        env={**os.environ, "PYTHONPATH": os.pathsep.join([str(REPOSITORY), os.environ.get("PYTHONPATH", "")])},
        capture_output=True,
        text=True,
        check=False,
    )
    if run.returncode != 0:
        print(run.stdout + run.stderr)
    last_line = run.stdout.strip().rsplit("\n", 1)[-1]
    return f"{'passed' if run.returncode == 0 else 'failed'}: {last_line}"


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
