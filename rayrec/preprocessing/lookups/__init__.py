"""Side tables joined by key, and smoothed rates of the label: written before the fits, then read with the rows.

A job of rows calls, after its rows are parsed and split, what `side_tables`, `label_rates` and `completed_rows` have
(`keyed_rows` brings the rows of a key together, and writes their table):

    # tables: a SideTable for each side table; forms: those of the texts of the log (`text_forms`)
    schema = Schema(label=label, features=(), columns=columns, lookups=tables)
    for table in tables:
        # reader: its key (text), which no row may lack, and its columns by their names in the files
        written = write_side_table(workspace, table, source.tables[table.name], reader, files, max_rejected, forms)

    # rates: a Rate for each rate, whose mean is not known yet
    folds = Folds(source.rate_folds, config.seed, workspace.scratch / "rates", source.group)
    rates = write_rates(workspace, CompletedRows(schema, workspace.folder), segments["train"], rates, folds)
    write_served_rates(workspace, rates, folds, workspace.folder / STATISTICS_FOLDER / RATES_FOLDER)
    schema = schema.model_copy(update={"lookups": (*tables, *rates)})

    train_rows = CompletedRows(schema, workspace.folder, folds)  # rates are out of fold
    other_rows = CompletedRows(schema, workspace.folder)
    for batch in train_rows.read(segment, columns, dictionaries):  # as `read_piece`, for fits and encoding
        ...

What the rows lack is looked up by `rayrec.features.lookups.Lookups`, in requests as in tasks; the files of the rows
hold the columns of the raw files alone. Without look-ups `read` gives what `read_piece` gives.
"""
