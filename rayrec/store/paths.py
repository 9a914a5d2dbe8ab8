"""Translates between a URI and the local folder that is its copy.

`s3://bucket/exp/run` lies in STAGING/s3=3A__bucket_exp_run/run. The name is the URI itself, with `_` for its slashes
and `=` and two hexadecimal digits for all but letters, digits, `.` and `-`. So no list of folders is needed, and every
process on every machine finds the same folder.
"""

import hashlib
import os
import re
from pathlib import Path
from typing import Annotated
from urllib.parse import SplitResult, quote, unquote, urlsplit

from pydantic import BeforeValidator, PlainSerializer

from rayrec.common.errors import ConfigError, UserError

REGISTRY_SCHEME = "models:/"
"""The scheme of models in MLflow's registry."""
STAGING_VARIABLE = "RAYREC_STAGING"
_DEFAULT_STAGING = "~/.cache/rayrec/staging"
_COLLAPSED = re.compile(r"[a-z][a-z0-9+.-]+:/[^/]")
_STAGED_NAME = r"[a-z][a-z0-9+.-]*=3A__[A-Za-z0-9._=-]+"
_LONGEST_STAGED = 255
_AT_URI = ".at-uri-"
_URI = re.compile(r"^[a-z][a-z0-9+.-]*://")
_LONGEST_NAME = 160
"""Bytes; file systems take 255, also of the longer names under which files are written, with endings and numbers."""


def is_uri(path: str) -> bool:
    """Return whether `path` names its file system, as s3://bucket/key does."""
    return _URI.match(path) is not None


def file_name(name: str) -> str:
    """Return the name of a file or folder for something of any name: another for each, not hidden, in no folder."""
    escaped = name.replace("%", "%25").replace("/", "%2F").replace("\0", "%00")
    return shortened(f"%2E{escaped[1:]}" if escaped.startswith(".") else escaped or "%")


def shortened(name: str) -> str:
    """Return a name, or where a file could not have it the beginning of it and a hash."""
    if len(name.encode()) <= _LONGEST_NAME:
        return name
    beginning = name.encode()[: _LONGEST_NAME // 2].decode(errors="ignore")
    return f"{beginning}~{hashlib.sha256(name.encode()).hexdigest()[:32]}"


def confined(name: str, where: object) -> str:
    """`name`, if it is that of a file below a folder; those in manifests, buckets and archives may be anything.

    Raises UserError, which begins with `where`.
    """
    parts = name.split("/")
    if "\0" in name or not all(parts) or not {".", ".."}.isdisjoint(parts):
        raise UserError(f"{where}: {name!a} lies outside the folder, or names no file; correct or remove it")
    return name


def local_path(given: str | Path) -> Path:
    """Return the local path of a folder given as a path or a URI: where a URI is staged, unless it begins with file://.

    Touches no file, except that a model of MLflow's registry (`models:/`) is looked up, and fetched if only MLflow's
    server can. Raises ConfigError on a URI that does not name a folder, or contains a password.
    """
    text = str(given)
    if text.startswith(REGISTRY_SCHEME):
        from rayrec.store.mlflow_server import registered_folder

        return local_path(registered_folder(text, staging_root() / "mlflow"))
    if _COLLAPSED.match(text):
        raise ConfigError(f"{text}: a URI that was made a Path loses a slash; give it as text")
    if not is_uri(text):
        return Path(text)
    parts = urlsplit(text)
    if parts.scheme == "file":
        return Path(unquote(parts.path))
    if parts.password is not None:
        raise ConfigError(
            "leave the password out, because URIs are stored with the results; set AWS_ACCESS_KEY_ID and "
            "AWS_SECRET_ACCESS_KEY, or the variables of your file system, instead"
        )
    segments = [segment for segment in parts.path.split("/") if segment]
    if not parts.netloc or parts.fragment or any(segment.startswith(".") for segment in segments):
        form = f"{parts.scheme}://BUCKET/FOLDER, without names in dots{', and # as %23' if parts.fragment else ''}"
        raise ConfigError(f"{text}: names no folder; write it as {form}")
    name = _encode(_joined(parts, segments))
    if len(name) > _LONGEST_STAGED:
        raise ConfigError(f"{text}: longer than a file's name may be; give a shorter one")
    return staging_root() / name / (segments[-1] if segments else parts.netloc)


def staging_root() -> Path:
    """Return the folder in which all URIs are staged: RAYREC_STAGING, if set."""
    return Path(os.environ.get(STAGING_VARIABLE) or _DEFAULT_STAGING).expanduser().absolute()


def staged_root(path: Path) -> Path | None:
    """Return the staged folder that `path` is or lies in; None if there is none."""
    for index, part in enumerate(path.parts[:-1]):
        if re.fullmatch(_STAGED_NAME, part):
            return Path(*path.parts[: index + 2])
    return None


def here(path: Path) -> Path:
    """Return the path on this node of a path in a staged folder of any node, whose staging may be elsewhere; or
    `path`.
    """
    root = staged_root(path)
    if root is None:
        return path
    return staging_root() / root.parent.name / root.name / path.relative_to(root)


def in_folder_around(path: Path) -> Path:
    """Return, for a staged folder, its path in the staged copy of the folder around it, where its siblings are;
    or `path`.
    """
    parts = urlsplit(location(path))
    segments = [segment for segment in parts.path.split("/") if segment]
    if staged_root(path) != path or not segments:
        return path
    return local_path(_joined(parts, segments[:-1])) / segments[-1]


def name_at_uri(path: Path) -> str:
    """Return the name of a path in its staged folder; "" for that folder itself."""
    root = staged_root(path)
    assert root is not None, path
    return "" if path == root else path.relative_to(root).as_posix()


def uri_of(path: Path) -> str | None:
    """Return the URI of a staged folder, or of a path in one; None for any other path."""
    root = staged_root(path)
    if root is None:
        return None
    parts = urlsplit(_decode(root.parent.name))
    return _joined(parts, [s for s in parts.path.split("/") if s] + list(path.relative_to(root).parts))


def unfinished_at_uri(path: Path, fingerprint: str = "") -> Path:
    """Return the folder that becomes the staged folder `path`, or one in it, while nodes that share no disk write it.

    Its files are at its URI alone. With no fingerprint, what the names of all such folders begin with.
    """
    around = path if path == staged_root(path) else path.parent
    return around / f".{path.name}{_AT_URI}{fingerprint}"


def is_at_uri(path: Path) -> bool:
    """Return whether a path is in such a folder."""
    return any(part.startswith(".") and _AT_URI in part for part in path.parts) and staged_root(path) is not None


def location(path: Path) -> str:
    """Return a path as a person gave it: the URI if it is staged."""
    return uri_of(path) or str(path)


def resolve(given: str, beside: Path) -> Path:
    """Return the local path of a folder that a file in `beside` names: in the staged folder of `beside`, if it lies
    there.
    """
    root = staged_root(beside)
    if root is not None and is_uri(given):
        around, inner = urlsplit(location(root)), urlsplit(given)
        same_store = (around.scheme, around.netloc, around.query) == (inner.scheme, inner.netloc, inner.query)
        if same_store and inner.path.startswith(f"{around.path}/"):
            return root / confined(inner.path.removeprefix(f"{around.path}/"), given)
    return local_path(given)


def shown(text: str) -> str:
    """Return a text for a person, with URIs, without their queries, in place of staged folders."""
    pattern = rf"{re.escape(str(staging_root()))}/({_STAGED_NAME})/[^\s/'\":,;)]+"
    return re.sub(pattern, lambda match: _decode(match[1]).partition("?")[0], text)


def _joined(parts: SplitResult, segments: list[str]) -> str:
    query = f"?{parts.query}" if parts.query else ""
    return "/".join([f"{parts.scheme}://{parts.netloc}", *segments]) + query


def _encode(uri: str) -> str:
    return quote(uri, safe="/").replace("_", "%5F").replace("~", "%7E").replace("%", "=").replace("/", "_")


def _decode(name: str) -> str:
    return unquote(name.replace("_", "/").replace("%", "%25").replace("=", "%"))


def _as_local(given: object) -> object:
    if not isinstance(given, str | Path):
        return given
    try:
        return str(local_path(given))
    except ConfigError as error:  # pydantic's message shows what was given too
        raise ValueError(str(error).removeprefix(f"{given}: ")) from None


def _refuse_uri(given: object) -> object:
    if is_uri(str(given)) or _COLLAPSED.match(str(given)):
        raise ConfigError("takes a local path, not a URI")
    return given


Folder = Annotated[Path, BeforeValidator(_as_local), PlainSerializer(location, when_used="json")]
"""The type of a field that takes a folder or a URI: a Path, which is the URI again in JSON."""
LocalPath = Annotated[Path, BeforeValidator(_refuse_uri)]
"""The type of a field that takes a path but not a URI."""
