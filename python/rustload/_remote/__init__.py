"""Objects in stores as sources that are read by ranges, through the user's own fsspec file system or obstore store."""
