import pytest
import torch

from rayrec.common.errors import UserError
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.registry import build_model
from tests.builders import make_schema

CONFIG = DCNv2Config(embedding_dim=6, bottom_mlp=(9, 4), cross_layers=2, cross_rank=5, top_mlp=(7, 5))


def test_no_categorical_feature() -> None:
    with pytest.raises(UserError, match="no categorical feature"):
        build_model(CONFIG, make_schema(categorical=0))


def test_dense_network_alone_under_autocast() -> None:
    network = build_model(CONFIG, make_schema(numeric=2, categorical=3)).dense_network
    dense, pooled = torch.randn(8, 2), torch.randn(8, 18, requires_grad=True)
    expected = network(dense, pooled)
    seen = []
    network.cross_layers[0].register_forward_hook(lambda module, inputs, output: seen.append(output.dtype))
    with torch.autocast("cpu", torch.bfloat16):
        logits = network(dense, pooled)
    assert logits.dtype == torch.float32
    assert seen == [torch.bfloat16], "float32 embeddings must not keep the cross layers in float32"
    torch.testing.assert_close(logits, expected, rtol=0.05, atol=0.05)
    logits.sum().backward()
    assert pooled.grad is not None and pooled.grad.dtype == torch.float32
