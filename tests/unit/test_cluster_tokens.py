"""Whoever reaches a Ray cluster runs code on it: nothing that starts one leaves out the token."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

REPOSITORY = Path(__file__).resolve().parents[2]
MANIFESTS = sorted((REPOSITORY / "cluster").rglob("*.yaml"))
TEXTS = [
    *(path for path in sorted((REPOSITORY / "cluster").rglob("*")) if path.suffix in (".py", ".yaml", "")),
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "docs").glob("*.ipynb")),
    *sorted(REPOSITORY.glob("rayrec/**/*.md")),
    REPOSITORY / "README.md",
    REPOSITORY / "Makefile",
]
SWITCH = re.compile(r"\bRAY_AUTH_MODE(?:=|: ?)[\"']?(\w+)")
"""`export RAY_AUTH_MODE=token`, `--env RAY_AUTH_MODE=token`, `RAY_AUTH_MODE: token`."""


def unguarded_starts(text: str) -> list[str]:
    """Return the lines with a `ray start` and options that begin a node before the text has turned tokens on.

    All of them: also a head whose dashboard is this machine's alone opens the port of its control service.
    """
    found, guarded = [], False
    for line in text.splitlines():
        switches = [] if line.lstrip().startswith("#") else SWITCH.findall(line)
        if switches:
            guarded = switches[-1] == "token"
        if not guarded and re.search(r"\bray start +-", line):
            found.append(line.strip())
    return found


def unguarded_clusters(resource: Any) -> Iterator[dict[str, Any]]:
    """The cluster specifications of KubeRay in a resource that ask for no token; KubeRay opens their dashboards."""
    if isinstance(resource, dict):
        if "headGroupSpec" in resource and resource.get("authOptions") != {"mode": "token"}:
            yield resource
        resource = list(resource.values())
    if isinstance(resource, list):
        for part in resource:
            yield from unguarded_clusters(part)


def containers(resource: Any) -> Iterator[dict[str, Any]]:
    if isinstance(resource, dict):
        yield from resource.get("containers", [])
        resource = list(resource.values())
    if isinstance(resource, list):
        for part in resource:
            yield from containers(part)


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_node_is_started_with_a_token(path: Path) -> None:
    if path.is_file():
        assert unguarded_starts(path.read_text()) == []


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_every_cluster_asks_for_a_token(path: Path) -> None:
    for resource in yaml.safe_load_all(path.read_text()):
        assert list(unguarded_clusters(resource)) == []
        # A client of a cluster says itself that it has a token.
        for container in containers(resource) if resource.get("kind") != "CronJob" else ():
            names = {variable["name"] for variable in container.get("env", [])}
            assert not names & {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}, "these are KubeRay's to set"


@pytest.mark.parametrize("path", MANIFESTS, ids=lambda path: path.name)
def test_no_manifest_has_a_secret_in_it(path: Path) -> None:
    for resource in yaml.safe_load_all(path.read_text()):
        assert resource.get("kind") != "Secret", "whoever applies the file makes it"
        for container in containers(resource):
            for variable in container.get("env", []):
                if re.search("TOKEN|PASSWORD|SECRET", variable["name"]):
                    assert set(variable) == {"name", "valueFrom"}, variable["name"]
                    assert set(variable["valueFrom"]["secretKeyRef"]) == {"name", "key"}, "not optional"


def test_the_server_has_its_tokens_from_a_secret() -> None:
    """On every node: Ray Serve builds the application on any of them."""
    service = yaml.safe_load((REPOSITORY / "cluster" / "kuberay" / "rayservice.yaml").read_text())
    found = list(containers(service))
    assert len(found) == 2
    for container in found:
        assert "RAYREC_SERVE_TOKENS" in {variable["name"] for variable in container["env"]}


def test_every_machine_of_the_launcher_has_the_token() -> None:
    content = yaml.safe_load((REPOSITORY / "cluster" / "autoscaler.yaml").read_text())
    assert "--env RAY_AUTH_MODE=token" in content["docker"]["run_options"]
    for kind in content["available_node_types"].values():
        assert "run_options" not in kind.get("docker", {}), "they would replace those of all machines"
    # The launcher takes `~` for /root where an image does not set HOME.
    home = re.search(r"useradd .* (\w+)$", (REPOSITORY / "cluster" / "Dockerfile").read_text(), re.MULTILINE)
    assert home is not None
    assert content["file_mounts"] == {f"/home/{home[1]}/.ray/auth_token": "~/.ray/auth_token"}
