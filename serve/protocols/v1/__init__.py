"""The V1 protocol of KServe and TensorFlow Serving, with methods to recommend and to rank."""
