"""Protocols of clients: V1 and the Open Inference Protocol over HTTP and gRPC."""
