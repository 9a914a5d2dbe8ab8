"""Raw files to a served model: the phases of `rayrec run`, and the days of one that goes on."""
