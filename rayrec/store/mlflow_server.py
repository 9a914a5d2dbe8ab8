"""An MLflow server: where metrics of training go, and whose registry knows model folders by `models:/` URIs.

`models:/NAME@ALIAS` and `models:/NAME/VERSION` are looked up on the server of MLFLOW_TRACKING_URI, as all of MLflow's
clients do.
"""

import os
import re
import secrets
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from urllib.parse import quote, urlsplit

from rayrec.common.errors import ConfigError, UserError
from rayrec.store.folders import new_folder
from rayrec.store.paths import file_name

_SERVER_VARIABLE = "MLFLOW_TRACKING_URI"
_HELD_BY_THE_SERVER = "mlflow-artifacts"
"""The scheme of artifacts that only the server reads and writes."""
_REGISTERED = re.compile(r"models:/+(?P<name>[^/@]+)(?:@(?P<alias>[^/@]+)|/(?P<version>[0-9]+))")


@contextmanager
def mlflow_at(server: str | None) -> Iterator[ModuleType]:
    """Yield the module `mlflow`, which speaks to a server, by default that of MLFLOW_TRACKING_URI.

    Its errors in the block become a UserError in one line. Raises ConfigError if there is no server, or no MLflow.
    """
    # By default MLflow asks a server that is away for minutes.
    os.environ.setdefault("MLFLOW_HTTP_REQUEST_MAX_RETRIES", "2")
    # The output of a command is its result.
    os.environ.setdefault("MLFLOW_SUPPRESS_PRINTING_URL_TO_STDOUT", "true")
    try:
        import mlflow
    except ImportError:
        raise ConfigError("MLflow is not installed; docs/install.md#mlflow has the command") from None
    server = server or os.environ.get(_SERVER_VARIABLE)
    if not server:
        raise ConfigError(f"{_SERVER_VARIABLE}: is not set; give it the address of the MLflow server")
    mlflow.set_tracking_uri(server)
    mlflow.set_registry_uri(server)
    try:
        yield mlflow
    except mlflow.MlflowException as error:
        raise UserError(f"MLflow at {server}: {' '.join(str(error).split())}") from None


def registered_name(uri: str) -> str:
    """Return the name of the model that a `models:/` URI names. Raises ConfigError."""
    return _parts(uri)["name"]


def registered_folder(uri: str, cache: Path) -> str:
    """Return where the model folder of a `models:/` URI is: a local path, or a URI of another file system.

    What only the server can read is fetched into a folder of `cache`. Raises ConfigError if the URI is wrong or no
    server is known, UserError if there is no such version or the server does not answer.
    """
    parts = _parts(uri)
    with mlflow_at(None) as mlflow:
        client, name = mlflow.MlflowClient(), parts["name"]
        version: str = parts["version"] or client.get_model_version_by_alias(name, parts["alias"]).version
        artifacts: str = client.get_model_version_download_uri(name, version)
        if urlsplit(artifacts).scheme != _HELD_BY_THE_SERVER:
            return artifacts
        # A version never changes: what was fetched once stays.
        folder = cache / quote(mlflow.get_tracking_uri(), safe="") / file_name(name) / file_name(version)
        if not folder.exists():
            folder.parent.mkdir(parents=True, exist_ok=True)
            with new_folder(folder) as new:
                mlflow.artifacts.download_artifacts(artifact_uri=artifacts, dst_path=str(new))
        # MLflow gives what it fetches the name that it has on the server.
        (fetched,) = folder.iterdir()
        return str(fetched)


def require_registry(server: str | None) -> None:
    """Raise what `register` would raise if no server is known or the server does not answer."""
    with mlflow_at(server) as mlflow:
        mlflow.MlflowClient().search_registered_models(max_results=1)


def register(folder: Path, name: str, server: str | None, run: str | None) -> str:
    """Make a model folder the next version of a registered model, which may be a new one; return the version.

    `server`: by default that of MLFLOW_TRACKING_URI. `run`: the id of the MLflow run that the folder becomes artifacts
    of; by default a new one. Raises ConfigError if no server is known, UserError if it fails.
    """
    with mlflow_at(server) as mlflow:
        client = mlflow.MlflowClient()
        with mlflow.start_run(run_id=run, run_name=name):
            place = f"model-{secrets.token_hex(4)}"
            mlflow.log_artifacts(str(folder), place)
            source = mlflow.get_artifact_uri(place)
            run = mlflow.active_run().info.run_id
        try:
            client.create_registered_model(name)
        except mlflow.MlflowException as error:
            if error.error_code != "RESOURCE_ALREADY_EXISTS":
                raise
        version: str = client.create_model_version(name, source, run).version
        return version


def _parts(uri: str) -> re.Match[str]:
    parts = _REGISTERED.fullmatch(uri)
    if parts is None:
        raise ConfigError(f"{uri}: write models:/NAME@ALIAS or models:/NAME/VERSION")
    return parts
