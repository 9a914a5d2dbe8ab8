"""Where things are: the sharding plan, the model spread over the ranks, what a step should cost."""
