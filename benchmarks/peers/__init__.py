"""rayrec beside its peers on this machine: see `benchmarks.peers.__main__`."""
