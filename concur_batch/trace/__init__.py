"""A run's records: schema, journal, Parquet and reading."""
