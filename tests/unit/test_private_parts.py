"""Private parts of libraries are used in `rayrec/internals` and `cluster/ray_serve.py` alone."""

import ast
from collections.abc import Iterator
from pathlib import Path

import pytest

REPOSITORY = Path(__file__).resolve().parents[2]
PRODUCT = ("rayrec", "jobs", "serve", "tune", "cluster", "cuda_ops")
DOCUMENTED = {"_asdict", "_exit", "_replace", "_typeshed"}
"""Names that Python's documentation has in spite of their underscore."""


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.endswith("__") and name not in DOCUMENTED


def own_names(tree: ast.AST) -> Iterator[str]:
    """Yield the names that a module gives to what it defines, on `self` too."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store) and ast.unparse(node.value) == "self":
            yield node.attr


def private_parts(tree: ast.AST, own: set[str]) -> Iterator[str]:
    """Yield imports of private names from other packages, and private attributes of what is neither `self` nor ours."""
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and (node.module or "").partition(".")[0] not in PRODUCT:
            names = [*(node.module or "").split("."), *(alias.name for alias in node.names)]
        elif isinstance(node, ast.Import):
            names = [name for alias in node.names for name in alias.name.split(".")]
        elif isinstance(node, ast.Attribute):
            names = [] if node.attr in own or ast.unparse(node.value) in ("self", "cls") else [node.attr]
        elif isinstance(node, ast.Call) and ast.unparse(node.func) in ("getattr", "hasattr", "setattr"):
            names = [arg.value for arg in node.args[1:2] if isinstance(arg, ast.Constant) and arg.value not in own]
        else:
            continue
        if any(map(is_private, names)):
            yield ast.unparse(node)


def test_two_places_use_private_parts() -> None:
    paths = [path for package in PRODUCT for path in (REPOSITORY / package).rglob("*.py")]
    trees = {path.relative_to(REPOSITORY).as_posix(): ast.parse(path.read_text()) for path in paths}
    own = {name for tree in trees.values() for name in own_names(tree)}
    found = {name: parts for name, tree in trees.items() if (parts := list(private_parts(tree, own)))}
    assert "rayrec/internals/ray_core.py" in found
    elsewhere = {
        n: p for n, p in found.items() if not n.startswith("rayrec/internals/") and n != "cluster/ray_serve.py"
    }
    assert elsewhere == {}, "move these to the module of their library in rayrec/internals, or do without"


@pytest.mark.parametrize(
    ("line", "found"),
    [
        ("from ray._private.services import address", True),
        ("from ray.experimental.internal_kv import _internal_kv_put", True),
        ("import ray.data._internal", True),
        ("session.sparkContext._jvm", True),
        ("self.proxy._process", True),
        ("getattr(self, '_haproxy', None)", True),
        ("from rayrec.store.files import _write", False),
        ("run._step.model", False),
        ("self._modules", False),
        ("schema._replace(rows=1)", False),
        ("torch.__version__", False),
    ],
)
def test_what_a_private_part_is(line: str, found: bool) -> None:
    assert bool(list(private_parts(ast.parse(line), {"_step"}))) == found
