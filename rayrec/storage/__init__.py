"""Local copies of folders in a bucket, or in any file system that pyarrow opens by a URI.

Object stores cannot rename, append to, lock or map files, which all folders of rayrec need. So a folder that is given
by a URI has a local copy: input is fetched into it before the work begins, and output is sent from it while the work
continues. Commands, trials and servers see local paths only.
"""
