"""Stores that buckets lie in: how one is opened, and what is done where it fails.

A store may fail for a while, and what fails is tried again with longer and longer pauses. Every error is one line that
names the URI and what to do.
"""

import os
import random
import re
import time
from collections.abc import Callable
from datetime import timedelta
from functools import lru_cache
from pathlib import Path
from typing import Any, TypeVar
from urllib.error import HTTPError, URLError
from urllib.parse import parse_qsl
from urllib.request import Request, urlopen

from obstore.exceptions import BaseError
from obstore.store import from_url

from rayrec.common.errors import StoreError, UserError
from rayrec.store.paths import RemotePath

T = TypeVar("T")
_PATIENCE_SECONDS = 15.0
"""No new try begins later than that after the first one."""
_FIRST_PAUSE_SECONDS = 0.1
_RETRIES: Any = {"max_retries": 3, "retry_timeout": timedelta(seconds=_PATIENCE_SECONDS)}
"""obstore's own, of one request each: so a part of a large file may fail without the others."""
_CLIENT: Any = {"allow_http": True, "connect_timeout": "5s", "read_timeout": "30s", "timeout": "1h"}
_OPTIONS = ("endpoint_override", "scheme", "region")
"""What may stand in the query of a URI."""
TOO_LITTLE = "the store sends or holds less than it should"
BUSY = "the store is busy with another request for the same file"
_LASTING = {
    "unknown kind of store; use s3://, gs://, az:// or abfs://": ("Unable to recognise URL",),
    "no such bucket; make it, or correct the URI": (
        "NoSuchBucket", "bucket does not exist", "ContainerNotFound", "container does not exist",
    ),
    "the bucket is in another region; set AWS_REGION": ("redirect without LOCATION", "301 Moved"),
    "access denied; check the credentials (AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or "
    "GOOGLE_APPLICATION_CREDENTIALS) and what they allow": (
        "403 Forbidden", "401 Unauthorized", "lacked the necessary privileges",
        # Where no credentials are set, a machine's own are asked for, which only machines of a cloud have.
        "169.254.169.254", "metadata.google.internal",
    ),
}  # fmt: skip
"""What is wrong and how to fix it, by texts that obstore's errors contain; no retry helps."""
_PASSING = {
    "the store keeps failing; try again later": ("status code: 5", "status code: 429", "SlowDown", TOO_LITTLE, BUSY),
    "no answer; check AWS_ENDPOINT_URL (or the URI's endpoint_override) and the network": ("HTTP error",),
}
"""The same, where a retry may help."""
_first_process = 0
"""The process that opened a store first."""


def store_of(path: RemotePath) -> Any:
    """Return obstore's store in which a path lies, under the name `path.key`. Raises UserError if it cannot be opened.

    A process that was forked from one that had opened a store cannot open one: obstore's threads are not in it.
    """
    global _first_process  # noqa: PLW0603
    _first_process = _first_process or os.getpid()
    if _first_process != os.getpid():
        raise StoreError(f"{path}: cannot be opened in a process forked from one that used a bucket; spawn it instead")
    return _opened(path.store, os.environ.get("AWS_ENDPOINT_URL"))


@lru_cache(maxsize=16)
def _opened(uri: str, endpoint: str | None) -> Any:
    """Return the store of a URI: its options stand before the environment's, which obstore reads."""
    place, _, query = uri.partition("?")
    options = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := sorted(options.keys() - set(_OPTIONS)):
        raise StoreError(f"{uri}: cannot be opened: unknown option {unknown[0]!a}; give one of {', '.join(_OPTIONS)}")
    place = re.sub("^gcs:", "gs:", place)
    is_s3 = place.startswith("s3:")
    config: dict[str, Any] = {}
    if host := options.get("endpoint_override"):
        config["base_url" if place.startswith("gs:") else "endpoint"] = f"{options.get('scheme', 'https')}://{host}"
    region = options.get("region") or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION")
    if is_s3 and not region and not host and not endpoint:
        region = _region_of(place.removeprefix("s3://"))
    if is_s3 and region:
        config["region"] = region
    provider = _profile(uri) if is_s3 else None

    def attempt() -> Any:
        return from_url(  # type: ignore[call-overload]  # whose options differ by scheme
            place, config=config, client_options=_CLIENT, retry_config=_RETRIES, credential_provider=provider
        )

    return tried(uri, "opened", attempt)


def _region_of(bucket: str) -> str | None:
    """Return the region of one of Amazon's buckets, which is told also to who may not read it; None without answer."""
    try:
        with urlopen(Request(f"https://s3.amazonaws.com/{bucket}", method="HEAD"), timeout=5) as answer:
            return answer.headers.get("x-amz-bucket-region")
    except HTTPError as error:
        return error.headers.get("x-amz-bucket-region")
    except (URLError, TimeoutError):
        return None


def _profile(uri: str) -> Any:
    """Return the credentials of `aws configure` and of single sign-on, which only boto3 reads; None if there are none.

    Keys in the environment stand before them. Raises UserError if boto3 is not installed.
    """
    files = (
        os.environ.get("AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials"),
        os.environ.get("AWS_CONFIG_FILE", "~/.aws/config"),
    )
    if "AWS_ACCESS_KEY_ID" in os.environ or not (
        "AWS_PROFILE" in os.environ or any(Path(file).expanduser().is_file() for file in files)
    ):
        return None
    try:
        from obstore.auth.boto3 import Boto3CredentialProvider
    except ImportError:
        raise StoreError(
            f"{uri}: cannot be opened: profiles of AWS need boto3; install it (pip install boto3), or set "
            "AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY"
        ) from None
    try:
        return Boto3CredentialProvider()
    except ValueError:  # a profile without credentials, as one that only names a region
        return None
    except Exception as error:  # botocore's errors have no common base beside it
        raise StoreError(f"{uri}: cannot be opened: {error}; check AWS_PROFILE and ~/.aws") from None


def tried(name: str, done: str, action: Callable[[], T]) -> T:
    """Return what an action of obstore gives, which is tried again unless no retry can help.

    Raises a StoreError, which says that `name` cannot be `done` ("read"), in place of obstore's errors, which have many
    lines.
    """
    deadline, pause = time.monotonic() + _PATIENCE_SECONDS, _FIRST_PAUSE_SECONDS
    while True:
        try:
            return action()
        except (UserError, FileExistsError):
            raise
        except (OSError, BaseError, ValueError) as error:
            if _lasts(error) or time.monotonic() >= deadline:
                raise StoreError(f"{name}: cannot be {done}: {reason(str(error), 'check the URI')}") from None
        # Many clients that try again at the same moment would be refused again.
        time.sleep(min(pause * random.uniform(0.5, 1.5), max(0, deadline - time.monotonic())))
        pause *= 2


def _lasts(error: Exception) -> bool:
    """Return whether no retry can help."""
    signs = (sign for signs in _LASTING.values() for sign in signs)
    return isinstance(error, FileNotFoundError | ValueError) or any(sign in str(error) for sign in signs)


def reason(error: str, otherwise: str) -> str:
    """Return what an error of obstore means and how to fix it; for an unknown one its first line and `otherwise`."""
    explanations = (_LASTING | _PASSING).items()
    known = (explanation for explanation, signs in explanations if any(sign in error for sign in signs))
    return next(known, f"{error.splitlines()[0][:300] if error else 'unknown reason'}; {otherwise}")
