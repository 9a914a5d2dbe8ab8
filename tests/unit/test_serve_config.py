"""The configuration that ships for `serve deploy` is one that Ray Serve and the application take."""

import importlib
import inspect
from pathlib import Path

import yaml
from ray.serve.schema import ServeDeploySchema

import serve
from serve.arguments import ServeArguments


def test_the_shipped_configuration() -> None:
    content = yaml.safe_load((Path(serve.__file__).parent / "config.yaml").read_text())
    (application,) = ServeDeploySchema.model_validate(content).applications
    module, _, function = application.import_path.partition(":")
    build = getattr(importlib.import_module(module), function)
    (parameter,) = inspect.signature(build).parameters.values()
    assert parameter.annotation is ServeArguments, "Serve validates `args` by this annotation"
    arguments = ServeArguments.model_validate(application.args)
    assert arguments.request_timeout_seconds < content["http_options"]["request_timeout_s"]
