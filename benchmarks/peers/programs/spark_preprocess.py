"""Criteo's preprocessing in plain PySpark.

The argument and the rules are those of polars_preprocess.py: one count of all columns, a broadcast join a column, a
sort by a random number. Prints JSON: the number of ids of each column.
"""

import json
import sys

from pyspark.sql import SparkSession, Window
from pyspark.sql import functions as F

NUMBERS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]


def main() -> None:
    arguments = json.loads(sys.argv[1])
    spark = (
        SparkSession.builder.master("local[2]")
        .config("spark.driver.memory", "6g")
        .config("spark.ui.enabled", "false")
        .config("spark.sql.shuffle.partitions", "4")
        .getOrCreate()
    )
    schema = ", ".join(["label INT", *(f"{name} INT" for name in NUMBERS), *(f"{name} STRING" for name in CATEGORIES)])
    rows = spark.read.csv(arguments["input"], sep="\t", quote="", schema=schema)
    stacked = ", ".join(f"'{name}', {name}" for name in CATEGORIES)
    order = Window.partitionBy("column").orderBy(F.desc("count"), "value")
    listed = (
        rows.selectExpr(f"stack({len(CATEGORIES)}, {stacked}) AS (column, value)")
        .where("value IS NOT NULL")
        .groupBy("column", "value")
        .count()
        .where(F.col("count") >= arguments["limit"])
        .withColumn("id", F.row_number().over(order))
        .cache()
    )
    sizes = {row["column"]: row["count"] for row in listed.groupBy("column").count().collect()}
    listed.write.partitionBy("column").parquet(f"{arguments['output']}/vocabulary")
    encoded = rows
    for name in NUMBERS:
        encoded = encoded.withColumn(
            name, F.coalesce(F.expr(f"IF({name} > -3, LN({name} + 3), 0)"), F.lit(0.0)).cast("float")
        )
    for name in CATEGORIES:
        ids = listed.where(F.col("column") == name).select(F.col("value").alias(name), F.col("id").alias(f"{name}_id"))
        encoded = encoded.join(F.broadcast(ids), name, "left").drop(name)
        encoded = encoded.withColumnRenamed(f"{name}_id", name).fillna(0, [name])
    encoded.orderBy(F.rand(seed=0)).write.parquet(f"{arguments['output']}/train")
    spark.stop()
    print(json.dumps({"ids": sizes}))


if __name__ == "__main__":
    main()
