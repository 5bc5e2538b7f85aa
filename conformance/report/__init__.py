"""Tables of results. Builders take records and return rows as data; the renderer sets them and computes nothing."""
