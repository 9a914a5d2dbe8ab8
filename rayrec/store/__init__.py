"""Files and folders that are whole or absent, on disks and in buckets.

`paths` says where something lies, `objects` reaches buckets, `files` writes what is whole or absent, and `node_copy`
brings to a node's disk what libraries map or open by name. The other modules say what such files hold.
"""
