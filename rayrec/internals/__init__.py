"""The only modules that use private parts of libraries, one for each library; Ray Serve's is `cluster.ray_serve`.

`tests/unit/test_internals.py` names what an upgrade has changed. Heavy libraries are imported inside functions.
"""
