"""The pods of `cluster/kuberay`: how they are watched, what they may do, who reaches them, where their secrets are."""

import os
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import jsonschema
import kubernetes_validate
import pytest
import yaml

from cluster.ray_serve import SETTINGS
from tests import kuberay_fields

CLUSTER = Path(__file__).resolve().parents[2] / "cluster"
FILES = {path.stem: path for path in sorted((CLUSTER / "kuberay").glob("*.yaml"))}
KUBERNETES = "1.30"
AGENT_PORT, DASHBOARD_PORT, SERVE_PORT = 52365, 8265, 8000
METRICS_PORTS = {8080, 44217, 44227}


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
    def is_node(self) -> bool:
        return self.group not in ("submitter", "redis", "daily")


@cache
def resources(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all(FILES[name].read_text()))


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


def policies() -> Iterator[dict[str, Any]]:
    for policy in resources("network"):
        yield policy["spec"]


def selects(selector: dict[str, Any], labels: dict[str, str]) -> bool:
    return selector.get("matchLabels", {}).items() <= labels.items() and all(
        expression["operator"] == "In" and labels.get(expression["key"]) in expression["values"]
        for expression in selector.get("matchExpressions", [])
    )


def admits(rule: dict[str, Any], pod: Pod, port: int) -> bool:
    """Whether a rule lets a pod of the same namespace in at a port."""
    by_port = "ports" not in rule or port in {entry["port"] for entry in rule["ports"]}
    return by_port and any(
        "namespaceSelector" not in peer and selects(peer["podSelector"], pod.labels) for peer in rule["from"]
    )


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


def test_the_monitor_is_what_prometheus_takes() -> None:
    (monitor,) = resources("monitoring")
    jsonschema.validate(monitor, kuberay_fields.resource("PodMonitor"))


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


def test_the_autoscaler_is_restricted_too() -> None:
    (cluster,) = resources("raycluster")
    head = cluster["spec"]["headGroupSpec"]["template"]["spec"]["containers"][0]
    assert cluster["spec"]["autoscalerOptions"]["securityContext"] == head["securityContext"]


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


def test_health_is_asked_where_ray_answers_without_a_token() -> None:
    from ray._private import ray_constants
    from ray.dashboard import http_server_agent
    from ray.serve._private import haproxy

    assert ray_constants.DEFAULT_DASHBOARD_AGENT_LISTEN_PORT == AGENT_PORT
    assert "/api/healthz" in http_server_agent.PUBLIC_EXACT_PATHS
    assert haproxy.HAProxyConfig.health_check_endpoint == "/-/healthz"


@every_pod
def test_a_policy_says_who_reaches_a_pod(pod: Pod) -> None:
    ours = [policy for policy in policies() if selects(policy["podSelector"], pod.labels)]
    assert len(ours) == 1, "rules of several policies add up"
    (policy,) = ours
    assert policy["policyTypes"] == ["Ingress"]
    for rule in policy["ingress"]:
        assert rule["from"], "a rule without anybody lets everybody in"
        if not all(selects(peer.get("podSelector", {}), pod.labels) for peer in rule["from"]):
            assert rule["ports"], "other pods reach some ports only"


@every_pod
def test_other_pods_reach_only_what_is_meant_for_them(pod: Pod) -> None:
    """The dashboard, which runs code, is the operator's alone; the server, which asks for tokens, is everybody's."""
    (policy,) = [policy for policy in policies() if selects(policy["podSelector"], pod.labels)]
    for rule in policy["ingress"]:
        ports = {entry["port"] for entry in rule.get("ports", [])}
        for peer in rule["from"]:
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
    for policy in policies():
        for pod in PODS:
            if not selects(policy["podSelector"], pod.labels) or pod.file in (other.file, "redis"):
                continue
            sends_jobs = (other.file, pod.file) == ("daily", "raycluster")
            assert any(admits(rule, other, DASHBOARD_PORT) for rule in policy["ingress"]) is sends_jobs


def test_heads_alone_reach_redis() -> None:
    (redis,) = [pod for pod in PODS if pod.file == "redis"]
    (policy,) = [policy for policy in policies() if selects(policy["podSelector"], redis.labels)]
    for pod in PODS:
        # KubeRay adds the label to what it makes.
        node_type = "head" if pod.group == "head" else "worker"
        labelled = pod._replace(labels={**pod.labels, **({"ray.io/node-type": node_type} if pod.is_node else {})})
        assert any(admits(rule, labelled, 6379) for rule in policy["ingress"]) is (pod.group == "head")


@pytest.mark.parametrize("name", ["raycluster", "rayservice"])
def test_heads_keep_what_they_know_in_redis(name: str) -> None:
    service, redis = resources("redis")
    (resource,) = resources(name)
    spec = resource["spec"].get("rayClusterConfig", resource["spec"])
    (port,) = service["spec"]["ports"]
    options = spec["gcsFaultToleranceOptions"]
    assert options["redisAddress"] == f"{service['metadata']['name']}:{port['port']}"
    (pod,) = [pod for pod in PODS if pod.file == "redis"]
    assert selects({"matchLabels": service["spec"]["selector"]}, pod.labels)
    assert selects(redis["spec"]["selector"], pod.labels)
    (variable,) = pod.container["env"]
    assert variable["valueFrom"] == options["redisPassword"]["valueFrom"]
    assert f"$({variable['name']})" in pod.container["args"]


def test_every_secret_is_one_that_the_files_say_how_to_make() -> None:
    text = "".join(path.read_text() for path in FILES.values())
    made = set(re.findall(r"# +kubectl create secret generic (\S+) --from-literal=(\w+)=", text))
    used = set(re.findall(r"secretKeyRef: \{name: (\S+), key: (\w+)\}", text))
    (cluster,) = resources("raycluster")
    assert used == {*made, (cluster["metadata"]["name"], "auth_token")}, "or KubeRay makes it for the cluster"
    assert text.count("secretKeyRef:") == len(re.findall(r"secretKeyRef: \{name: \S+, key: \w+\}", text))


def test_every_node_is_measured() -> None:
    from ray.autoscaler._private.constants import AUTOSCALER_METRIC_PORT
    from ray.dashboard.consts import DASHBOARD_METRIC_PORT

    (monitor,) = resources("monitoring")
    scraped = [endpoint["port"] for endpoint in monitor["spec"]["podMetricsEndpoints"]]
    assert scraped == ["metrics", "as-metrics", "dash-metrics"]
    for pod in PODS:
        if not pod.is_node:
            assert not set(scraped) & set(pod.ports)
            continue
        assert selects(monitor["spec"]["selector"], pod.labels)
        assert pod.ports["metrics"] == 8080, "KubeRay starts Ray with it"
        if pod.group == "head":
            assert pod.ports["dash-metrics"] == DASHBOARD_METRIC_PORT
            assert pod.ports.get("as-metrics", AUTOSCALER_METRIC_PORT) == AUTOSCALER_METRIC_PORT
        (policy,) = [policy for policy in policies() if selects(policy["podSelector"], pod.labels)]
        open_ports = {entry["port"] for rule in policy["ingress"] for entry in rule.get("ports", [])}
        assert {pod.ports[name] for name in scraped if name in pod.ports} <= open_ports


def test_the_service_answers_through_haproxy() -> None:
    """With the settings with which it was measured on one machine, on every node."""
    for pod in PODS:
        if pod.file == "rayservice":
            variables = {variable["name"]: variable.get("value") for variable in pod.container["env"]}
            program = variables.pop("RAY_SERVE_HAPROXY_BINARY_PATH")
            assert variables == {**SETTINGS, "RAYREC_SERVE_TOKENS": None}
            assert os.access(CLUSTER.parent / Path(program).relative_to("/opt/rayrec"), os.X_OK)
