import numpy as np
import pytest
import torch

from rayrec.common.errors import UserError
from rayrec.features.schema import Schema
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.registry import build_model
from tests.builders import CRITEO, WITH_SHARED_TABLES, make_schema
from tests.naive_models import naive_logits, random_batch

CONFIG = DCNv2Config(embedding_dim=6, bottom_mlp=(9, 4), cross_layers=2, cross_rank=5, top_mlp=(7, 5))


@pytest.mark.parametrize(
    ("config", "schema"),
    [
        (CONFIG, make_schema(numeric=3, categorical=4)),
        (CONFIG, make_schema(numeric=2, categorical=2, multi_hot=2)),
        (CONFIG, make_schema(numeric=0, categorical=3)),
        (CONFIG, WITH_SHARED_TABLES),
        (CONFIG, make_schema(numeric=2, categorical=2, multi_hot=3, weighted=("M1", "M2"))),
        (CONFIG.model_copy(update={"embedding_dims": {"C1": 3, "M2": 11}}), make_schema(numeric=2, multi_hot=2)),
    ],
)
def test_equals_a_naive_computation(config: DCNv2Config, schema: Schema) -> None:
    model = build_model(config, schema, seed=3)
    torch.nn.init.normal_(model.dense_network.cross_layers[0].v.bias)  # it starts at 0, which would hide it
    batch = random_batch(schema, rows=17)
    logits = model(batch)
    assert logits.dtype == torch.float32
    np.testing.assert_allclose(
        logits.detach().numpy(), naive_logits(config, schema, model.state_dict(), batch), rtol=1e-5, atol=1e-6
    )


def test_published_shapes() -> None:
    model = build_model(DCNv2Config(), CRITEO, "meta")
    shapes = {name: tuple(p.shape) for name, p in model.named_parameters()}
    width = 128 + 26 * 128
    assert width == 3456
    assert "dense_network.cross_layers.3.u.weight" not in shapes
    for layer in range(3):
        assert shapes[f"dense_network.cross_layers.{layer}.u.weight"] == (512, width)
        assert shapes[f"dense_network.cross_layers.{layer}.v.weight"] == (width, 512)
        assert shapes[f"dense_network.cross_layers.{layer}.v.bias"] == (width,)
        assert f"dense_network.cross_layers.{layer}.u.bias" not in shapes
    assert shapes["dense_network.top_mlp.0.weight"] == (1024, width)
    cross_layer = sum(p.numel() for p in model.dense_network.cross_layers[0].parameters())
    assert cross_layer == 2 * width * 512 + width  # 3.54M, as published


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
