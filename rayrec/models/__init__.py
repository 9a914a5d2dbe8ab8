"""The models: plain `nn.Module`s over a TorchRec `EmbeddingBagCollection` that know nothing about distribution."""
