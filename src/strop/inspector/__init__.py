"""The inspector: a web page to view and edit programs, and the JSON API behind it."""
