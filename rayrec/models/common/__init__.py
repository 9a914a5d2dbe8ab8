"""Parts that the models share: the batch, the embeddings, dense layers, initialization."""
