"""Files and folders that are whole or absent, on disks and in buckets.

`paths` says where something lies, and `objects` reaches buckets (`stores` opens them); `files` and `folders` write
what is whole or absent, at a URI by `claims`; `node_copy` brings to a node's disk what libraries map or open by name,
and `growing_files` to the bucket what a node appends to. `artifact` says what is in a folder, and what it is made of.
"""
