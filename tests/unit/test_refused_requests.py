"""Answers that are no replica's, from what HAProxy counts."""

from serve.metrics import count_refused

METRICS = b"""
haproxy_frontend_http_responses_total{proxy="prometheus",code="4xx"} 9
haproxy_frontend_http_responses_total{proxy="http_frontend",code="2xx"} 70
haproxy_frontend_http_responses_total{proxy="http_frontend",code="4xx"} 12
haproxy_frontend_http_responses_total{proxy="http_frontend",code="5xx"} 3
haproxy_server_http_responses_total{proxy="http-rayrec",server="SERVE_REPLICA_a",code="4xx"} 4
haproxy_server_http_responses_total{proxy="http-rayrec",server="SERVE_REPLICA_b",code="4xx"} 5
haproxy_server_http_responses_total{proxy="http-rayrec",server="SERVE_REPLICA_b",code="5xx"} 4
haproxy_server_http_responses_total{proxy="grpc-rayrec",server="SERVE_REPLICA_b",code="4xx"} 7
"""


def test_those_of_replicas_are_taken_off() -> None:
    told = count_refused(METRICS).decode().splitlines()
    assert told == [
        'ray_rayrec_refused_requests_total{code="4xx"} 3',
        'ray_rayrec_refused_requests_total{code="5xx"} 0',
    ]


def test_there_are_none_without_haproxy() -> None:
    assert count_refused(b"") == b""
