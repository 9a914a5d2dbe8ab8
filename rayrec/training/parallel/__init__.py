"""The place of each thing: the sharding plan, the model spread over the ranks, what a step should cost."""
