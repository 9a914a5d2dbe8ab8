"""The Ray Serve application: raw features in over HTTP and gRPC, scores out.

This package is named as Ray's own library, so that `serve run serve.app:build` finds it; Ray's is imported as
`from ray import serve as ray_serve`.

A request, in the order in which it passes the modules:

- `http.Front` admits it before Ray Serve takes it up, and reads its body; `grpc_server` does the same for gRPC. Both
  ask `admission`, which has the rule: token, size, memory and time. It records the answer, too.
- `http.Router` finds its route (`app` has their table).
- `v1`, `v2` and `grpc_app`, with `arrow` and `request_tensors`, read it into checked columns, `RequestRows`.
- `models.ServedModel` chooses the version that answers, `batching` joins it with others that wait, and
  `models.ServedVersion` encodes and scores all of them in one pass. `metrics` counts, for Prometheus and for the
  `dashboard`.

Beside it, `updates` looks into the `folders` for new versions. `app` puts a replica together, `server` starts and ends
Ray Serve.

To add a verb (`POST /v1/models/NAME:VERB`), write an entry of `VERBS` in `v1`: the classes of its bodies and the
function between them. Its route, the check of its body and its part of `/openapi.json` follow.
"""
