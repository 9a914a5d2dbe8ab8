"""The fields of KubeRay's `ray.io/v1`, and of Prometheus' operator, that the manifests of `cluster/kuberay` use.

Written down from KubeRay's resource definitions of August 2026 (1.7), against which the manifests were checked as they
stand; the definitions themselves (3 MB) are in no package of a registry. A field that is not here is an error: it is
looked up there and added. Pod templates are checked against Kubernetes' own schemas instead.
"""

from typing import Any

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
BOOLEAN = {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": STRING}
TEMPLATE = {"type": "object", "required": ["spec"]}
"""Of a pod, or a part of one that Kubernetes' schemas describe."""


def _object(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    return {"type": "object", "additionalProperties": False, "required": list(required), "properties": properties}


def _one_of(*values: str) -> dict[str, Any]:
    return {"enum": list(values)}


CLUSTER = _object(
    ("headGroupSpec",),
    rayVersion=STRING,
    authOptions=_object(mode=_one_of("disabled", "token")),
    enableInTreeAutoscaling=BOOLEAN,
    autoscalerOptions=_object(
        version=_one_of("v1", "v2"),
        upscalingMode=_one_of("Default", "Aggressive", "Conservative"),
        idleTimeoutSeconds=INTEGER,
        securityContext={"type": "object"},
    ),
    gcsFaultToleranceOptions=_object(
        redisAddress=STRING,
        redisPassword=_object(valueFrom=_object(secretKeyRef=_object(("key",), name=STRING, key=STRING))),
    ),
    headGroupSpec=_object(("template",), rayStartParams=TEXTS, template=TEMPLATE),
    workerGroupSpecs={
        "type": "array",
        "items": _object(
            ("groupName", "minReplicas", "maxReplicas", "template"),
            groupName=STRING,
            replicas=INTEGER,
            minReplicas=INTEGER,
            maxReplicas=INTEGER,
            rayStartParams=TEXTS,
            template=TEMPLATE,
        ),
    },
)
JOB = _object(
    entrypoint=STRING,
    submissionMode=_one_of("K8sJobMode", "HTTPMode", "InteractiveMode", "SidecarMode"),
    submitterPodTemplate=TEMPLATE,
    backoffLimit=INTEGER,
    shutdownAfterJobFinishes=BOOLEAN,
    ttlSecondsAfterFinished=INTEGER,
    runtimeEnvYAML=STRING,
    rayClusterSpec=CLUSTER,
)
SERVICE = _object(("rayClusterConfig",), serveConfigV2=STRING, rayClusterConfig=CLUSTER)

MONITOR = _object(
    ("selector", "podMetricsEndpoints"),
    selector=_object(matchLabels=TEXTS),
    podMetricsEndpoints={
        "type": "array",
        "items": _object(
            port=STRING,
            relabelings={
                "type": "array",
                "items": _object(sourceLabels={"type": "array", "items": STRING}, targetLabel=STRING),
            },
        ),
    },
)


def resource(kind: str) -> dict[str, Any]:
    """JSON schema of a whole manifest of a kind: RayCluster, RayJob, RayService or PodMonitor."""
    spec = {"RayCluster": CLUSTER, "RayJob": JOB, "RayService": SERVICE, "PodMonitor": MONITOR}[kind]
    metadata = _object(("name",), name=STRING, labels=TEXTS)
    version = "monitoring.coreos.com/v1" if kind == "PodMonitor" else "ray.io/v1"
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": version},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )
