"""The inspector: a web page, and the JSON API behind it, where one sees and edits programs."""
