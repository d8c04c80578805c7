"""A checkpoint as one HTML file, or its treemap as an SVG image.

`view` is the entry; `document` collects what the page shows, `page` makes the HTML of it, `svg` the image. The folder `page` has
the script, the styles and the frame of the page.
"""
