"""The private parts of libraries that rayrec uses are still what it takes them for."""

import inspect
import os
from types import SimpleNamespace

import pytest
import torch
import torch.distributed as dist
from torch import optim
from torch.nn import functional as F

from rayrec.internals import onednn
from rayrec.internals.ray_data import AbandonableExecution
from rayrec.internals.ray_train import POLL_INTERVAL, PREEMPTION_WATCHER, START_TIMEOUT, preempted_nodes
from rayrec.internals.torchrec import (
    call_tables_directly,
    drop_cached_rows,
    local_shards,
    set_fused_parameters,
    set_output_dtype,
    set_planned_optimizer,
    sharded_like,
    whole_shape,
)

GONE = "an upgrade has changed a private part of {}: adapt rayrec/internals/{}.py"


def test_ray_keeps_notes_without_a_process_for_them() -> None:
    from ray.experimental.internal_kv import _internal_kv_del, _internal_kv_get, _internal_kv_put

    message = GONE.format("Ray", "ray_core")
    assert list(inspect.signature(_internal_kv_put).parameters)[:3] == ["key", "value", "overwrite"], message
    assert all(next(iter(inspect.signature(f).parameters)) == "key" for f in (_internal_kv_get, _internal_kv_del)), (
        message
    )


def test_ray_train_hands_its_variables_on() -> None:
    from ray.train.v2._internal import constants

    message = GONE.format("Ray Train", "ray_train")
    assert constants.WORKER_GROUP_START_TIMEOUT_S_ENV_VAR == START_TIMEOUT, message
    assert constants.HEALTH_CHECK_INTERVAL_S_ENV_VAR == POLL_INTERVAL, message
    assert constants.ENABLE_PREEMPTION_WATCHER_ENV_VAR == PREEMPTION_WATCHER, message
    assert {START_TIMEOUT, POLL_INTERVAL, PREEMPTION_WATCHER} <= constants.ENV_VARS_TO_PROPAGATE, message


def test_a_worker_knows_the_nodes_that_ray_train_tells_it_of(monkeypatch: pytest.MonkeyPatch) -> None:
    from ray.train.v2._internal.execution import context
    from ray.train.v2._internal.execution.preemption import PreemptionContext
    from ray.train.v2._internal.execution.worker_group.worker import RayTrainWorker
    from ray.train.v2.api.preemption import PreemptionInfo

    class Told(RayTrainWorker):
        def __init__(self) -> None:
            """Without a process of its own."""

    train_context = SimpleNamespace(preemption_context=PreemptionContext(), get_world_rank=lambda: 0)
    monkeypatch.setattr(context, "_train_context", train_context)
    assert preempted_nodes() == 0
    Told().mark_preempt(PreemptionInfo(deadline_ms=None, preempted_node_to_ranks={"a": [0, 1], "b": [2]}))
    assert preempted_nodes() == 2, GONE.format("Ray Train", "ray_train")


def test_the_state_of_a_sharded_table_is_sharded_alike(one_rank: None) -> None:
    from torch.distributed._shard import sharded_tensor
    from torch.distributed._shard.sharding_spec import ChunkShardingSpec

    table = sharded_tensor.zeros(ChunkShardingSpec(dim=0, placements=["rank:0/cpu"]), 6, 4)
    ((local, row, column),) = local_shards(table)
    assert (tuple(local.shape), row, column) == ((6, 4), 0, 0), GONE.format("torch", "torchrec")
    state = sharded_like(torch.ones(6, 4), table)
    assert isinstance(state, sharded_tensor.ShardedTensor) and state.size() == table.size()
    ((part, _, _),) = local_shards(state)
    assert part.eq(1).all()
    assert whole_shape(state) == (6, 4) and whole_shape(torch.ones(2, 3)) == (2, 3)
    plain = torch.ones(2, 3)
    assert local_shards(plain) == [(plain, 0, 0)] and sharded_like(plain, plain) is plain
    sums = sharded_tensor.zeros(ChunkShardingSpec(dim=0, placements=["rank:0/cpu"]), 6)
    assert [(tuple(part.shape), row, column) for part, row, column in local_shards(sums)] == [((6,), 0, 0)]
    step = torch.zeros(())
    assert sharded_like(step, table) is step


def test_torchrec_reads_what_is_set_on_a_weight(one_rank: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """Two tables of one collection: each kernel has the parameters of its group, and groups share no kernel."""
    from fbgemm_gpu.split_embedding_configs import EmbOptimType
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen
    from torch.nn.parallel import DistributedDataParallel
    from torchrec.distributed.embeddingbag import EmbeddingBagCollectionSharder, ShardedEmbeddingBagCollection
    from torchrec.distributed.planner import shard_estimators
    from torchrec.distributed.sharding_plan import construct_module_sharding_plan, data_parallel, table_wise
    from torchrec.distributed.types import ShardingEnv
    from torchrec.modules.embedding_configs import EmbeddingBagConfig
    from torchrec.modules.embedding_modules import EmbeddingBagCollection

    message = GONE.format("TorchRec", "torchrec")
    set_planned_optimizer(weight := torch.nn.Parameter(torch.zeros(2, 4)), optim.Adam)
    (planned,) = (name for name, value in vars(weight).items() if value == [optim.Adam])
    assert f'"{planned}"' in inspect.getsource(shard_estimators), message
    names = ("a", "b", "c", "copied")
    configs = [EmbeddingBagConfig(name=n, embedding_dim=4, num_embeddings=8, feature_names=[n]) for n in names]
    tables = EmbeddingBagCollection(configs, device=torch.device("meta"))
    for name, group, rate in (("a", "one", 0.5), ("b", "one", 0.5), ("c", "two", 0.5)):
        parameters = {"optimizer": EmbOptimType.EXACT_SGD, "learning_rate": rate}
        set_fused_parameters(tables.embedding_bags[name].weight, group, parameters)
    ways = {name: table_wise(rank=0, compute_kernel="fused") for name in names[:3]} | {"copied": data_parallel()}
    sharder = EmbeddingBagCollectionSharder()
    plan = construct_module_sharding_plan(tables, ways, sharder, local_size=1, world_size=1, device_type="cpu")
    environment = ShardingEnv.from_process_group(dist.group.WORLD)
    sharded = ShardedEmbeddingBagCollection(tables, plan, environment, device=torch.device("cpu"))
    kernels = [sorted(optimizer.params) for _, optimizer in sharded.fused_optimizer.optimizers]
    of_tables = [[key.split(".")[-2] for key in kernel] for kernel in kernels]
    assert sorted(of_tables) == [["a", "b"], ["c"]], message
    assert any(isinstance(lookup, DistributedDataParallel) for lookup in sharded._lookups), message
    emptied: list[object] = []

    def empty(kernel: object) -> None:
        emptied.append(kernel)

    monkeypatch.setattr(SplitTableBatchedEmbeddingBagsCodegen, "reset_cache_states", empty)
    drop_cached_rows(torch.nn.ModuleList([sharded]))
    assert len(emptied) == 2, message
    call_tables_directly(torch.nn.ModuleList([sharded]))
    assert not any(isinstance(lookup, DistributedDataParallel) for lookup in sharded._lookups), message


def test_fbgemms_kernels_are_asked_at_each_call_for_their_output() -> None:
    """In float16, which those of CPUs have."""
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import (
        ComputeDevice,
        DenseTableBatchedEmbeddingBagsCodegen,
        SplitTableBatchedEmbeddingBagsCodegen,
    )

    kernel = SplitTableBatchedEmbeddingBagsCodegen([(10, 8, EmbeddingLocation.HOST, ComputeDevice.CPU)])
    model = torch.nn.ModuleList([kernel, DenseTableBatchedEmbeddingBagsCodegen([(10, 8)], use_cpu=True)])
    ids, offsets = torch.tensor([1, 2, 2]), torch.tensor([0, 1, 3])
    for dtype in (torch.float16, torch.float32):
        set_output_dtype(model, dtype)
        assert kernel(ids, offsets).dtype == dtype, GONE.format("FBGEMM", "torchrec")


def test_a_callback_can_forget_the_work_that_has_not_begun() -> None:
    from ray.data import DataContext
    from ray.data._internal.execution.execution_callback import ExecutionCallback
    from ray.data._internal.execution.streaming_executor import StreamingExecutor
    from ray.data._internal.execution.streaming_executor_state import OpBufferQueue, OpState

    message = GONE.format("Ray Data", "ray_data")
    context = DataContext.get_current().copy()
    execution = AbandonableExecution.of(context)
    assert context.custom_execution_callback_classes[-1] is execution, message
    callback = execution()
    assert isinstance(callback, ExecutionCallback) and hasattr(ExecutionCallback, "on_execution_step"), message
    executor = inspect.getsource(StreamingExecutor)
    assert "self._topology[" in executor and "callback.on_execution_step(self)" in executor, message
    assert "self.input_queues" in inspect.getsource(OpState) and hasattr(OpBufferQueue, "clear"), message

    class State:
        input_queues = [[1, 2], [3]]

    class Executor:
        _topology = {"map": State()}

    callback.on_execution_step(Executor())
    assert State.input_queues == [[1, 2], [3]]
    with execution.abandoned():
        callback.on_execution_step(Executor())
    assert State.input_queues == [[], []]


def test_torch_has_onednns_linear_layer() -> None:
    message = GONE.format("torch", "onednn")
    input, weight, bias, grad = torch.randn(9, 5), torch.randn(4, 5), torch.randn(4), torch.randn(9, 4)
    assert onednn.multiplies(torch.float32) and not onednn.multiplies(torch.float64), message
    expected = F.linear(input, weight, bias).relu()
    torch.testing.assert_close(onednn.linear(input, weight, bias, relu=True), expected, msg=message)
    torch.testing.assert_close(onednn.linear(grad, weight.T, None), grad @ weight, msg=message)
    torch.testing.assert_close(onednn.linear_gradients(grad, input, weight), (grad.T @ input, grad.sum(0)), msg=message)


def test_ray_reads_a_new_token(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of another cluster before the block, and again after it."""
    from ray._private.authentication.http_token_authentication import get_auth_headers_if_auth_enabled

    from rayrec.internals.ray_core import new_token

    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    monkeypatch.setenv("RAY_AUTH_TOKEN", "f" * 64)
    before = dict(os.environ)
    tokens = []
    for _ in range(2):
        with new_token():
            tokens.append(os.environ["RAY_AUTH_TOKEN"])
            headers = get_auth_headers_if_auth_enabled({})
            assert any(tokens[-1] in str(value) for value in headers.values()), GONE.format("Ray", "ray_core")
        assert dict(os.environ) == before and get_auth_headers_if_auth_enabled({}) == {}
    assert tokens[0] != tokens[1] and "f" * 64 not in tokens
