"""HTML for notebooks (`_repr_html_`): `page` has the frame, `tensors` the tree of names, `reports` tables of what was done."""
