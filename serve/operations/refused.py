"""Counts what HAProxy answers without a replica, by what it says of itself."""

import os
import re
import urllib.request
from collections import Counter
from http.client import HTTPException

_ANSWERS = re.compile(
    rb"haproxy_(frontend|server)_http_responses_total"
    rb'\{proxy="http[_-][^"]*",(?:server="[^"]*",)?code="([45]xx)"\} (\d+)'
)
_SECONDS = 3.0
# HAProxy of this machine is reached directly, whatever proxy the environment names.
_OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def refused_requests() -> bytes:
    """Return a line of Prometheus' text for 4xx and one for 5xx: answers of this node's HAProxy that are no replica's.

    Empty where requests do not come through HAProxy. The counts begin anew when the number of replicas changes.
    """
    port = os.environ.get("RAY_SERVE_HAPROXY_METRICS_PORT", "9101")
    try:
        with _OPENER.open(f"http://127.0.0.1:{port}/metrics?scope=frontend&scope=server", timeout=_SECONDS) as answer:
            return count(answer.read())
    except (OSError, HTTPException):
        return b""


def count(metrics: bytes) -> bytes:
    """Return the lines of `refused_requests` from HAProxy's own metrics."""
    refused: Counter[bytes] = Counter()
    for kind, code, answers in _ANSWERS.findall(metrics):
        refused[code] += int(answers) if kind == b"frontend" else -int(answers)
    # A replica's answer may be counted before it is sent.
    return b"".join(b'ray_rayrec_refused_requests_total{code="%s"} %d\n' % (c, max(0, n)) for c, n in refused.items())
