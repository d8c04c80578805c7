"""`rustload.scan`: static analysis of pickles.

`scan` runs it, `report` has the result classes, `policy` what a user accepts, `gate` whether a report passes, `text` formats a
report.
"""
