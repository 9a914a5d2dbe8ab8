"""The Ray Serve application: raw features in over HTTP, scores out.

This package is named as Ray's own library, so that `serve run serve.app:build` finds it; Ray's is imported as
`from ray import serve as ray_serve`.
"""
