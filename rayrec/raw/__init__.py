"""Raw files: found, read in chunks of whole lines, and parsed into rows, with the bad ones set aside."""
