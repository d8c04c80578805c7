"""What files would do in a reader that runs pickles: `scan` looks, `report` is what it gives, `text` shows that to people."""
