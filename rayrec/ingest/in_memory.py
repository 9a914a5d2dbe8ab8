"""A split read into memory once; its batches are those of the stream, bit for bit."""

from collections.abc import Generator
from dataclasses import dataclass

from rayrec.ingest.dataset import Dataset
from rayrec.ingest.plan import BatchPlan, Units
from rayrec.ingest.reader import PackedRows, RowPacker


@dataclass(frozen=True, eq=False)
class InMemorySplit:
    """Every row group of a split, packed. One serves every epoch; each worker needs its own, of the whole split,
    because an epoch's permutation may give it any row group."""

    units: Units
    packed: tuple[PackedRows, ...]

    @classmethod
    def read(cls, dataset: Dataset, split: str) -> "InMemorySplit":
        packer = RowPacker(dataset.folder, dataset.schema)
        units = Units.of(dataset.split(split).parts)
        places = zip(units.file, units.row_group, strict=True)
        packed = tuple(packer.read(units.files[file], int(group), threads=True) for file, group in places)
        return cls(units, packed)

    def reads(self, plan: BatchPlan) -> Generator[PackedRows]:
        """The plan's reads, in its order."""
        order = plan.row_order
        for index in range(plan.num_reads):
            unit, start, stop = plan.read(index)
            rows = self.packed[unit]
            yield rows.take(order.rows(unit, len(rows), start, stop, rows.group))
