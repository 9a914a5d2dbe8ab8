"""What torch.compile makes of each model's dense network and of the dot interaction: one graph, the same results."""

import pytest
import torch

from cuda_ops import dot_interaction
from rayrec.models.dcnv2.config import DCNv2Config
from rayrec.models.dlrm.config import DLRMConfig
from rayrec.models.neumf.config import NeuMFConfig
from rayrec.models.registry import build_model
from rayrec.models.wide_deep.config import WideDeepConfig
from tests.builders import make_schema, users_and_items
from tests.naive_models import interaction_inputs

TABLE = make_schema(numeric=2, categorical=3)
INTERACTIONS = users_and_items(50, 40)
NETWORKS = {
    "dlrm": (DLRMConfig(embedding_dim=6, bottom_mlp=(9, 6), top_mlp=(7, 5)), TABLE),
    "dlrm without interactions": (
        DLRMConfig(embedding_dim=6, bottom_mlp=(9, 4), top_mlp=(7, 5), interaction="cat"),
        TABLE,
    ),
    "dcnv2": (DCNv2Config(embedding_dim=6, bottom_mlp=(9, 4), cross_layers=2, cross_rank=5, top_mlp=(7, 5)), TABLE),
    "wide_deep": (WideDeepConfig(embedding_dim=6, embedding_dims={"C2": 3}, mlp=(9, 5)), TABLE),
    "neumf": (NeuMFConfig(factors=5, mlp=(8, 6, 3)), INTERACTIONS),
}


@pytest.mark.parametrize("model", NETWORKS)
def test_a_dense_network_is_one_graph(model: str) -> None:
    config, schema = NETWORKS[model]
    network = build_model(config, schema).dense_network.eval()
    tolerance = 0.05
    if model == "wide_deep":  # its wide part and its biases start at 0, which would hide them
        generator, tolerance = torch.Generator().manual_seed(1), 0.1
        with torch.no_grad():
            for parameter in network.parameters():
                parameter.normal_(0, 0.5, generator=generator)
    dense, pooled = torch.randn(8, schema.dense_width), torch.randn(8, 18)
    expected = network(dense, pooled)
    compiled = torch.compile(network, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(dense, pooled), expected)
    with torch.autocast("cpu", torch.bfloat16):
        logits = compiled(dense, pooled)
    assert logits.dtype == torch.float32
    torch.testing.assert_close(logits, expected, rtol=0.05, atol=tolerance)


# The operator


@pytest.mark.parametrize("dtype", [torch.float64, torch.bfloat16], ids=str)
@pytest.mark.parametrize("shape", [(3, 5, 8, True), (3, 5, 8, False)], ids=str)
def test_operator_keeps_torchs_rules(shape: tuple[int, int, int, bool], dtype: torch.dtype) -> None:
    """Schema, fake tensors, autograd registration and tracing with dynamic shapes agree with what it computes."""
    dense, embeddings = interaction_inputs(shape, dtype)
    torch.library.opcheck(torch.ops.rayrec.dot_interaction.default, (dense, embeddings, dtype))
    grad = torch.randn_like(dot_interaction(dense, embeddings)).detach()
    arguments = (grad, None if dense is None else dense.detach(), embeddings.detach())
    torch.library.opcheck(torch.ops.rayrec.dot_interaction_backward.default, arguments)


def test_compiled_without_a_graph_break_for_any_batch_size() -> None:
    compiled = torch.compile(dot_interaction, backend="aot_eager", fullgraph=True, dynamic=True)
    for rows in (3, 5, 8):
        dense, embeddings = interaction_inputs((rows, 5, 6, True))
        torch.testing.assert_close(compiled(dense, embeddings), dot_interaction(dense, embeddings))
        gradients = torch.autograd.grad(compiled(dense, embeddings).sum(), (dense, embeddings))
        expected = torch.autograd.grad(dot_interaction(dense, embeddings).sum(), (dense, embeddings))
        torch.testing.assert_close(gradients, expected)
