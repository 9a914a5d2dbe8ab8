"""Criteo's preprocessing in DuckDB; the argument is that of polars_preprocess.py, and so is what is printed."""

import json
import sys
from pathlib import Path

import duckdb

NUMBERS = [f"I{i}" for i in range(1, 14)]
CATEGORIES = [f"C{i}" for i in range(1, 27)]


def main() -> None:
    arguments = json.loads(sys.argv[1])
    output = Path(arguments["output"])
    output.mkdir()
    database = duckdb.connect()
    database.execute("SET preserve_insertion_order = false")
    types = {"label": "TINYINT", **dict.fromkeys(NUMBERS, "INTEGER"), **dict.fromkeys(CATEGORIES, "VARCHAR")}
    database.execute(f"""
        CREATE TABLE raw AS SELECT * FROM read_csv(
            '{arguments["input"]}', columns = {types}, delim = '\t', quote = '', escape = '', header = false)
    """)
    for name in CATEGORIES:
        database.execute(f"""
            CREATE TABLE values_{name} AS
            SELECT value, row_number() OVER (ORDER BY occurrences DESC, value) AS id
            FROM (SELECT {name} AS value, count(*) AS occurrences FROM raw WHERE {name} IS NOT NULL GROUP BY {name})
            WHERE occurrences >= {arguments["limit"]}
        """)
        database.execute(f"COPY (FROM values_{name} ORDER BY id) TO '{output / name}.parquet'")
    numbers = [f"CAST(CASE WHEN {n} > -3 THEN ln({n} + 3) ELSE 0 END AS FLOAT) AS {n}" for n in NUMBERS]
    ids = [f"CAST(coalesce(values_{name}.id, 0) AS INTEGER) AS {name}" for name in CATEGORIES]
    joins = [f"LEFT JOIN values_{name} ON raw.{name} = values_{name}.value" for name in CATEGORIES]
    database.execute(f"""
        COPY (SELECT label, {", ".join([*numbers, *ids])} FROM raw {" ".join(joins)} ORDER BY random())
        TO '{output / "train.parquet"}'
    """)
    sizes = {name: count(database, f"values_{name}") for name in CATEGORIES}
    print(json.dumps({"ids": sizes}))


def count(database: duckdb.DuckDBPyConnection, table: str) -> int:
    """Return the rows of a table."""
    ((found,),) = database.execute(f"SELECT count(*) FROM {table}").fetchall()
    return int(found)


if __name__ == "__main__":
    main()
