"""The fields of KubeRay's `ray.io/v1` that the manifests of `cluster/kuberay` use, with their types.

Written down from KubeRay's resource definitions of August 2026, against which the manifests were checked as they stand;
the definitions themselves (3 MB) are in no package of a registry. A field that is not here is an error: it is looked up
there and added. Pod templates are checked against Kubernetes' own schemas instead.
"""

from typing import Any

STRING = {"type": "string"}
INTEGER = {"type": "integer"}
BOOLEAN = {"type": "boolean"}
TEXTS = {"type": "object", "additionalProperties": STRING}
TEMPLATE = {"type": "object", "required": ["spec"]}


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
    backoffLimit=INTEGER,
    shutdownAfterJobFinishes=BOOLEAN,
    ttlSecondsAfterFinished=INTEGER,
    runtimeEnvYAML=STRING,
    rayClusterSpec=CLUSTER,
)
SERVICE = _object(("rayClusterConfig",), serveConfigV2=STRING, rayClusterConfig=CLUSTER)


def resource(kind: str) -> dict[str, Any]:
    """JSON schema of a whole manifest of a kind: RayCluster, RayJob or RayService."""
    spec = {"RayCluster": CLUSTER, "RayJob": JOB, "RayService": SERVICE}[kind]
    metadata = _object(("name",), name=STRING)
    return _object(
        ("apiVersion", "kind", "metadata", "spec"),
        apiVersion={"const": "ray.io/v1"},
        kind={"const": kind},
        metadata=metadata,
        spec=spec,
    )
