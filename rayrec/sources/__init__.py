"""The kinds of raw data, a folder each: config, reader, preprocessing, generator, what is looked up at request time."""
