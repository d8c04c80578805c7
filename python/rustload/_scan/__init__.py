"""`rustload.scan`: static analysis of pickles. `scan` runs it, `report` has the result classes, `text` formats a report."""
