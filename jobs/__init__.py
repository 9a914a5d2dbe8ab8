"""The entry points: one module a command, each `class XRequest(Request)` and `run(request, progress) -> Result`.

The command line, `python -m jobs.<command> --field value` (what `ray job submit` runs) and the Python API all build the
same request and call the same `run` through `jobs.entry_point`.
"""
