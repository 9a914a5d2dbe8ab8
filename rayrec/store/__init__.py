"""Folders in a bucket, or in any file system that pyarrow opens by a URI.

Object stores cannot rename, append to, lock or map files, which all folders of rayrec need. So a folder that is given
by a URI has a local copy of its small files, and of those that are mapped: input is fetched into it before the work
begins, and output is sent from it while the work continues. Large files are read, and shards of checkpoints written,
where the URI says, by whatever process needs them. All code sees local paths only, from which the URI can be read.
"""
