"""Folders of a bucket, or of any file system that pyarrow names by a URI, as local folders that are kept like them.

Stores of objects have no rename, append, lock or map, on which all folders of rayrec are built. So a folder that is
given by a URI has a local one: what is read is fetched into it before the work begins, what is written is sent from it
while the work goes on. A command, a trial and a server see paths alone.
"""
