"""The Open Inference Protocol, version 2, over gRPC."""
