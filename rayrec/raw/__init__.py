"""Raw files: found, read in chunks of whole lines, and parsed into good and bad rows."""
